//! The report: text for the terminal, JSON for programs, a page with the time line for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::RunOptions;
use crate::evidence::Evidence;
use crate::faults::Made;
use crate::plan::Planned;
use crate::verdict::{Invariant, Verdict};

/// Writes down what is going to happen, so that it is known whatever becomes of the run.
pub(crate) fn write_plan(options: &RunOptions, plan: &[Planned]) -> Result<PathBuf> {
    let folder = &options.schedule.reports;
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let place = folder.join(format!("{}.schedule.txt", options.db.name()));
    let lines: Vec<String> = plan.iter().map(Planned::to_string).collect();
    fs::write(&place, lines.join("\n") + "\n")?;
    Ok(place)
}

/// Writes all three, and answers the text.
pub(crate) fn write(
    options: &RunOptions,
    seed: u64,
    plan: &[Planned],
    evidence: &Evidence,
    verdict: &Verdict,
) -> Result<String> {
    let folder = &options.schedule.reports;
    let head = Head {
        db: options.db.name(),
        seed,
        seconds: options.schedule.seconds,
    };
    let text = text(&head, evidence, verdict);
    let place = |ending: &str| folder.join(format!("{}.{ending}", head.db));
    fs::write(place("txt"), &text)?;
    let json = json(&head, plan, evidence, verdict);
    fs::write(place("json"), serde_json::to_string_pretty(&json)?)?;
    fs::write(place("html"), page(&head, &text, evidence))?;
    Ok(text)
}

/// Which run it was.
struct Head {
    db: &'static str,
    seed: u64,
    seconds: u64,
}

/// How many there were of each kind that found something to break.
fn by_kind(faults: &[Made]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for made in faults.iter().filter(|made| made.hit) {
        *kinds.entry(made.fault.to_string()).or_default() += 1;
    }
    kinds
}

/// Of sorted figures.
fn quantile(sorted: &[i64], percent: usize) -> i64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or(0)
}

fn text(head: &Head, evidence: &Evidence, verdict: &Verdict) -> String {
    let Head { db, seed, seconds } = head;
    let figures = &verdict.figures;
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!(
        "{db}, seed {seed}: {} messages, {} faults in {seconds} s",
        figures.messages, figures.faults
    ));
    for (kind, count) in by_kind(&evidence.faults) {
        line(format!("  {count:>5} × {kind}"));
    }
    line(format!(
        "  {:>5} more found nothing to break",
        evidence.faults.len() - figures.faults
    ));
    for invariant in Invariant::ALL {
        let (count, examples) = verdict.examples(invariant);
        let mark = if count == 0 { "kept" } else { "BROKEN" };
        line(format!("  {mark:<6} {}", invariant.about()));
        for example in examples {
            line(format!("         {example}"));
        }
        if count > examples.len() {
            line(format!("         and {} more", count - examples.len()));
        }
    }
    if evidence.halted_since_calm() {
        line(
            "         the machine stood still in calm: who lost a lease then is not asked"
                .to_owned(),
        );
    }
    let redelivered = figures.redeliveries as f64 * 100.0 / figures.leased.max(1) as f64;
    line(format!(
        "  {} deliveries, {redelivered:.2} % of the leased ones again; {} dead letters; recovery p99 {} ms, worst \
         {} ms; longest stall of a partition {} ms; producers found the server away {} times; announced messages \
         take {} ms",
        figures.deliveries,
        figures.dead_letters,
        quantile(&figures.recoveries, 99),
        quantile(&figures.recoveries, 100),
        figures.longest_stall,
        figures.turned_away,
        figures.announced
    ));
    text
}

fn json(
    head: &Head,
    plan: &[Planned],
    evidence: &Evidence,
    verdict: &Verdict,
) -> serde_json::Value {
    let figures = &verdict.figures;
    let invariant = |invariant: Invariant| {
        let (count, examples) = verdict.examples(invariant);
        json!({"about": invariant.about(), "violations": count, "examples": examples})
    };
    let planned = |planned: &Planned| {
        json!({
            "at_ms": planned.at.as_millis() as u64,
            "fault": format!("{:?}", planned.fault),
            "worker": planned.worker,
        })
    };
    json!({
        "database": head.db,
        "seed": head.seed,
        "seconds": head.seconds,
        "kept": verdict.is_kept(),
        "messages": figures.messages,
        "deliveries": figures.deliveries,
        "leased_deliveries": figures.leased,
        "redeliveries": figures.redeliveries,
        "dead_letters": figures.dead_letters,
        "recovery_p99_ms": quantile(&figures.recoveries, 99),
        "recovery_worst_ms": quantile(&figures.recoveries, 100),
        "longest_stall_ms": figures.longest_stall,
        "turned_away": figures.turned_away,
        "announced_ms": figures.announced,
        "faults": by_kind(&evidence.faults),
        "faults_without_effect": evidence.faults.len() - figures.faults,
        "halted_in_calm": evidence.halted_since_calm(),
        "invariants": Invariant::ALL.map(invariant),
        "plan": plan.iter().map(planned).collect::<Vec<_>>(),
    })
}

/// Of the time line, of what stands before it, of a chart, and of a lane of faults.
const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 220.0;
const HEIGHT: f64 = 160.0;
const LANE: f64 = 18.0;

/// A page that needs nothing but itself.
fn page(head: &Head, text: &str, evidence: &Evidence) -> String {
    let from = evidence.looks.first().map_or(0, |look| look.at);
    let to = evidence
        .looks
        .last()
        .map_or(1, |look| look.at)
        .max(from + 1);
    let x = |at: i64| (at - from) as f64 / (to - from) as f64 * WIDTH;
    let rates: Vec<(f64, f64)> = evidence
        .looks
        .windows(2)
        .map(|pair| {
            let seconds = (pair[1].at - pair[0].at).max(1) as f64 / 1000.0;
            let rate = (pair[1].settled() - pair[0].settled()) as f64 / seconds;
            (x(pair[1].at), rate.max(0.0))
        })
        .collect();
    let lags: Vec<(f64, f64)> = evidence
        .looks
        .iter()
        .map(|look| (x(look.at), (look.sequenced() - look.settled()) as f64))
        .collect();
    let Head { db, seed, seconds } = head;
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>outbox under torture: {db}, seed {seed}</title>\n<style>\n{STYLE}</style>\n\
         <h1>{db}: {seconds} s of trouble, seed {seed}</h1>\n\
         {}{}{}<pre>{}</pre>\n</html>\n",
        chart("settled per second", &rates),
        chart("numbered and not settled", &lags),
        lanes(&evidence.faults, x),
        escaped(text)
    )
}

const STYLE: &str = "body { font: 16px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 2rem auto; \
padding: 0 1rem; color: #222; background: #fff }\nsvg { width: 100%; height: auto; background: #f6f6f4; \
overflow: visible }\nfigure { margin: 1.5rem 0 }\nrect { fill: #c0392b; opacity: .55 }\n\
rect:hover { opacity: 1 }\npolyline { fill: none; stroke: #1f5f99; stroke-width: 1.5 }\n\
text { font-size: 12px; fill: #555; text-anchor: end }\npre { overflow-x: auto; background: #f6f6f4; padding: 1rem }\n\
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b } \
svg, pre { background: #262626 } polyline { stroke: #6fb1ec } text { fill: #aaa } }\n";

/// The highest point of each column that can be told from its neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut thinned: Vec<(f64, f64)> = Vec::new();
    for &(x, y) in points {
        match thinned.last_mut() {
            Some(last) if last.0.floor() == x.floor() => last.1 = last.1.max(y),
            _ => thinned.push((x, y)),
        }
    }
    thinned
}

/// A lane for every kind of fault.
fn lanes(faults: &[Made], x: impl Fn(i64) -> f64) -> String {
    let mut kinds: BTreeMap<String, Vec<&Made>> = BTreeMap::new();
    for made in faults {
        kinds.entry(made.fault.to_string()).or_default().push(made);
    }
    let mut marks = String::new();
    for (lane, (kind, made)) in kinds.iter().enumerate() {
        let top = lane as f64 * LANE;
        // Writing to a string does not fail.
        let _ = write!(
            marks,
            "<text x=\"-8\" y=\"{:.0}\">{}</text>",
            top + LANE - 5.0,
            escaped(kind)
        );
        for made in made {
            let (left, took) = (x(made.from), made.to - made.from);
            let width = (x(made.to) - left).max(1.0);
            let height = LANE - 4.0;
            let _ = write!(
                marks,
                "<rect x=\"{left:.1}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{height}\">\
                 <title>{took} ms</title></rect>",
                top + 2.0
            );
        }
    }
    let height = kinds.len() as f64 * LANE;
    figure("faults", "faults, each as long as it took", height, &marks)
}

fn figure(label: &str, caption: &str, height: f64, drawing: &str) -> String {
    format!(
        "<figure><figcaption>{caption}</figcaption><svg viewBox=\"-{MARGIN} 0 {} {height}\" role=\"img\" \
         aria-label=\"{label}\">{drawing}</svg></figure>\n",
        WIDTH + MARGIN
    )
}

fn chart(title: &str, points: &[(f64, f64)]) -> String {
    let most = points.iter().map(|(_, y)| *y).fold(1.0, f64::max);
    let line: Vec<String> = thinned(points)
        .iter()
        .map(|(x, y)| format!("{x:.1},{:.1}", HEIGHT - y / most * HEIGHT))
        .collect();
    let drawing = format!(
        "<text x=\"-8\" y=\"12\">{most:.0}</text><text x=\"-8\" y=\"{HEIGHT}\">0</text>\
         <polyline points=\"{}\"/>",
        line.join(" ")
    );
    figure(title, title, HEIGHT, &drawing)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
