//! Lines over time, drawn on the server: what is seen without a script is the same.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use crate::watch::{MEMORY, QueueSample};
use crate::words;

/// The windows a chart can show: the smallest that shows all there is.
const WINDOWS: [Duration; 4] = [
    Duration::from_secs(120),
    Duration::from_secs(300),
    Duration::from_secs(900),
    MEMORY,
];
/// How many points a line has.
const POINTS: u32 = 60;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 20.0;
const TOP: f64 = 10.0;

/// What a line shows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shows {
    Arrived,
    Settled,
    Pending,
    Oldest,
    Failures,
}

/// Lines over the same time.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    /// What the numbers are.
    pub(crate) unit: &'static str,
    /// Names and the last value of each line, in the order of their colours.
    pub(crate) legend: Vec<(&'static str, String)>,
    pub(crate) svg: String,
}

/// What is remembered, as a function of time.
struct Timeline<'a> {
    samples: &'a [(SystemTime, QueueSample)],
    until: SystemTime,
    window: Duration,
}

impl Timeline<'_> {
    /// The end of the nth step.
    fn step(&self, step: u32) -> SystemTime {
        self.until - self.window * (POINTS - step) / POINTS
    }

    /// What was known at a moment, of the look before it; `None` before the first.
    fn at(&self, at: SystemTime) -> Option<&QueueSample> {
        let after = self.samples.partition_point(|(seen, _)| *seen <= at);
        after.checked_sub(1).map(|place| &self.samples[place].1)
    }

    /// A count that only grows, between two looks as if it grew evenly.
    fn count(&self, at: SystemTime, of: impl Fn(&QueueSample) -> i64) -> Option<f64> {
        let after = self.samples.partition_point(|(seen, _)| *seen <= at);
        let (from, before) = self.samples.get(after.checked_sub(1)?)?;
        let start = of(before) as f64;
        let Some((to, next)) = self.samples.get(after) else {
            return Some(start);
        };
        let whole = to.duration_since(*from).ok()?.as_secs_f64();
        let part = at.duration_since(*from).ok()?.as_secs_f64();
        Some(start + (of(next) as f64 - start) * (part / whole.max(0.001)))
    }

    fn line(&self, shows: Shows) -> Vec<Option<f64>> {
        let per_step = |of: fn(&QueueSample) -> i64, seconds: f64| {
            let step = self.window.as_secs_f64() / f64::from(POINTS);
            let rate = move |n: u32| {
                let (from, to) = (
                    self.count(self.step(n - 1), of)?,
                    self.count(self.step(n), of)?,
                );
                Some(((to - from) / step * seconds).max(0.0))
            };
            (1..=POINTS).map(rate).collect()
        };
        let gauge = |of: fn(&QueueSample) -> f64| {
            let points = (1..=POINTS).map(|n| self.at(self.step(n)).map(of));
            points.collect()
        };
        match shows {
            Shows::Arrived => per_step(|one| one.arrived, 1.0),
            Shows::Settled => per_step(|one| one.settled, 1.0),
            Shows::Failures => per_step(|one| one.failures, 60.0),
            Shows::Pending => gauge(|one| one.pending as f64),
            Shows::Oldest => gauge(|one| one.oldest.as_secs_f64()),
        }
    }
}

impl Chart {
    pub(crate) fn new(
        title: &'static str,
        unit: &'static str,
        samples: &[(SystemTime, QueueSample)],
        lines: &[(&'static str, Shows)],
    ) -> Self {
        let until = samples.last().map_or_else(SystemTime::now, |(at, _)| *at);
        let known = samples.first().map_or(Duration::ZERO, |(first, _)| {
            until.duration_since(*first).unwrap_or_default()
        });
        let window = WINDOWS.into_iter().find(|window| known <= *window);
        let timeline = Timeline {
            samples,
            until,
            window: window.unwrap_or(MEMORY),
        };
        let drawn: Vec<_> = lines
            .iter()
            .map(|(name, shows)| (*name, timeline.line(*shows)))
            .collect();
        let last = |line: &[Option<f64>]| line.iter().rev().find_map(|point| *point);
        let legend = drawn
            .iter()
            .map(|(name, line)| (*name, last(line).map_or("–".to_owned(), words::rate)))
            .collect();
        Self {
            title,
            unit,
            legend,
            svg: draw(title, unit, &timeline, &drawn),
        }
    }
}

/// A number that is easy to read and at least this.
fn ceiling(largest: f64) -> f64 {
    if largest <= 1.0 {
        return 1.0;
    }
    let magnitude = 10_f64.powf(largest.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| largest <= step * magnitude);
    step.unwrap_or(10.0) * magnitude
}

type Line = (&'static str, Vec<Option<f64>>);

fn draw(title: &str, unit: &str, timeline: &Timeline<'_>, lines: &[Line]) -> String {
    let values = lines.iter().flat_map(|(_, line)| line.iter().flatten());
    let top = ceiling(values.copied().fold(0.0, f64::max));
    let x = |step: usize| LEFT + (WIDTH - LEFT) * step as f64 / f64::from(POINTS - 1);
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / top);
    let mut svg = format!(
        r#"<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}, {unit}, over the last {}: {}">"#,
        words::span(timeline.window),
        summary(lines),
    );
    for part in [0.0, 0.5, 1.0] {
        let (value, at) = (top * part, y(top * part));
        let label = if top < 2.0 {
            format!("{value:.1}")
        } else {
            words::short(value.round() as i64)
        };
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1}" y2="{at:.1}"/><text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 6.0,
            at + 4.0,
        );
    }
    let ends = [
        (LEFT, "start", format!("−{}", words::span(timeline.window))),
        (
            WIDTH,
            "end",
            format!("{} UTC", words::clock(timeline.until)),
        ),
    ];
    for (x, anchor, label) in ends {
        let y = HEIGHT - 4.0;
        let _ = write!(
            svg,
            r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{label}</text>"#
        );
    }
    for (number, (_, line)) in lines.iter().enumerate() {
        let known: Vec<_> = line
            .iter()
            .enumerate()
            .filter_map(|(step, value)| value.map(|value| (x(step), y(value))))
            .collect();
        let points: Vec<_> = known
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        if let (Some((first, _)), Some((last, _)), 0) = (known.first(), known.last(), number) {
            let floor = y(0.0);
            let _ = write!(
                svg,
                r#"<polygon class="area-{number}" points="{first:.1},{floor:.1} {points} {last:.1},{floor:.1}"/>"#
            );
        }
        let _ = write!(
            svg,
            r#"<polyline class="line-{number}" points="{points}"/>"#
        );
    }
    hints(&mut svg, timeline, lines, x);
    svg.push_str("</svg>");
    svg
}

/// What each line says at each step, for whoever points at it.
fn hints(svg: &mut String, timeline: &Timeline<'_>, lines: &[Line], x: impl Fn(usize) -> f64) {
    let width = (WIDTH - LEFT) / f64::from(POINTS);
    for step in 0..POINTS {
        let place = step as usize;
        let told: Vec<_> = lines
            .iter()
            .filter_map(|(name, line)| {
                let value = words::rate(line[place]?);
                Some(format!("{name} {value}"))
            })
            .collect();
        if told.is_empty() {
            continue;
        }
        let _ = write!(
            svg,
            r#"<rect class="hint" x="{:.1}" y="{TOP}" width="{width:.1}" height="{:.1}"><title>{} UTC: {}</title></rect>"#,
            x(place) - width / 2.0,
            HEIGHT - TOP - BOTTOM,
            words::clock(timeline.step(step + 1)),
            told.join(", "),
        );
    }
}

/// For those who do not see the lines.
fn summary(lines: &[Line]) -> String {
    let told: Vec<_> = lines
        .iter()
        .map(|(name, line)| {
            let known = || line.iter().flatten().copied();
            match known().next_back() {
                None => format!("{name} not known yet"),
                Some(last) => format!(
                    "{name} now {}, at most {}",
                    words::rate(last),
                    words::rate(known().fold(0.0, f64::max))
                ),
            }
        })
        .collect();
    told.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn samples(settled: &[i64]) -> Vec<(SystemTime, QueueSample)> {
        let sample = |(place, settled): (u64, &i64)| {
            let at = UNIX_EPOCH + Duration::from_secs(1_000 + 2 * place);
            let queue = QueueSample {
                settled: *settled,
                pending: *settled,
                ..QueueSample::default()
            };
            (at, queue)
        };
        (0..).zip(settled).map(sample).collect()
    }

    #[test]
    fn a_count_becomes_a_rate_and_what_is_not_known_is_not_drawn() {
        let samples = samples(&[100, 100, 120, 160]);
        let timeline = Timeline {
            samples: &samples,
            until: samples[3].0,
            window: WINDOWS[0],
        };
        let line = timeline.line(Shows::Settled);
        assert_eq!(line.len(), 60);
        assert_eq!(line[56..], [None, Some(0.0), Some(10.0), Some(20.0)]);
        let pending = timeline.line(Shows::Pending);
        assert_eq!(pending[55..57], [None, Some(100.0)]);
    }

    #[test]
    fn a_count_that_goes_back_is_no_negative_rate() {
        let samples = samples(&[100, 0]);
        let timeline = Timeline {
            samples: &samples,
            until: samples[1].0,
            window: WINDOWS[0],
        };
        assert_eq!(timeline.line(Shows::Settled).last(), Some(&Some(0.0)));
    }

    #[test]
    fn the_scale_is_easy_to_read() {
        let tops = [0.0, 0.3, 1.1, 2.0, 4.9, 7.0, 101.0, 99_999.0].map(ceiling);
        assert_eq!(tops, [1.0, 1.0, 2.0, 2.0, 5.0, 10.0, 200.0, 100_000.0]);
    }

    #[test]
    fn nothing_known_is_said() {
        let chart = Chart::new(
            "Throughput",
            "per second",
            &[],
            &[("settled", Shows::Settled)],
        );
        assert!(chart.svg.contains("settled not known yet"), "{}", chart.svg);
        assert_eq!(chart.legend, [("settled", "–".to_owned())]);
    }
}
