//! What is to be seen while it runs: on a terminal a line per partition that moves, else a line per
//! second.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use outbox::{Outbox, OutboxError, PartitionStats};
use tokio::time::Instant;

use super::shop::Shop;
use super::{PARTITIONS, PATIENCE};
use crate::failure::{Code, Failure};
use crate::format::age;

const LOOKS: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);

/// How fast something grows, going by the last whole second or so.
#[derive(Debug)]
struct Pace {
    since: Instant,
    before: i64,
    per_second: f64,
}

impl Pace {
    fn new(since: Instant) -> Self {
        Self {
            since,
            before: 0,
            per_second: 0.0,
        }
    }

    /// What it is when so much is there.
    fn at(&mut self, now: Instant, there: i64) -> f64 {
        let passed = now.duration_since(self.since);
        if passed >= SECOND {
            // No demo counts so far that a float could not tell the numbers apart.
            self.per_second = (there - self.before) as f64 / passed.as_secs_f64();
            (self.since, self.before) = (now, there);
        }
        self.per_second
    }
}

#[derive(Debug)]
pub(super) struct View<'a, DB: Shop> {
    outbox: &'a Outbox<DB>,
    started: Instant,
    quiet: bool,
    screen: MultiProgress,
    summary: ProgressBar,
    partitions: Vec<ProgressBar>,
}

impl<'a, DB: Shop> View<'a, DB> {
    pub(super) fn new(outbox: &'a Outbox<DB>, quiet: bool) -> Self {
        let screen = MultiProgress::new();
        let line = |template: &str| {
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(0);
            screen.add(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
        };
        let partitions = (0..PARTITIONS.count())
            .map(|partition| {
                let bar = line("  partition {prefix}  {bar:40.green/dim}  {msg}");
                bar.with_prefix(partition.to_string())
            })
            .collect();
        let summary = line("  {msg:.bold}");
        Self {
            outbox,
            started: Instant::now(),
            quiet,
            screen,
            summary,
            partitions,
        }
    }

    /// Says what happens, above what moves.
    pub(super) fn say(&self, what: &str) {
        if self.quiet {
            return;
        }
        let line = format!("{:>5.1} s  {what}", self.started.elapsed().as_secs_f64());
        if std::io::stderr().is_terminal() {
            let _ = self.screen.println(line);
        } else {
            eprintln!("{line}");
        }
    }

    /// Shows how far it is until it is time.
    pub(super) async fn watch(&self, placed: &AtomicU32, until: Instant) {
        let mut ticks = tokio::time::interval(LOOKS);
        let mut said = Instant::now();
        let mut pace = Pace::new(said);
        while Instant::now() < until {
            ticks.tick().await;
            // One look that fails is followed by another.
            let Ok(stats) = self.outbox.stats().await else {
                continue;
            };
            let summary = self.show(&stats, placed.load(Ordering::Relaxed), &mut pace);
            if !std::io::stderr().is_terminal() && said.elapsed() >= SECOND {
                said = Instant::now();
                self.say(&summary);
            }
        }
    }

    fn show(&self, stats: &[PartitionStats], placed: u32, pace: &mut Pace) -> String {
        for (bar, partition) in self.partitions.iter().zip(stats) {
            bar.set_length(u64::try_from(partition.last_seq).unwrap_or(0));
            bar.set_position(u64::try_from(partition.processed_seq).unwrap_or(0));
            bar.set_message(format!(
                "{:>6} delivered, {} wait",
                partition.processed_seq,
                partition.pending()
            ));
        }
        let delivered: i64 = stats.iter().map(|one| one.processed_seq).sum();
        let waiting: i64 = stats.iter().map(PartitionStats::pending).sum();
        let per_second = pace.at(Instant::now(), delivered);
        let heads = stats.iter().filter_map(|one| one.head_created_at);
        let oldest = heads.min().map(|since| age(since, SystemTime::now()));
        let oldest = oldest.map_or_else(String::new, |age| format!(", the oldest for {age}"));
        let summary = format!(
            "{placed} orders, {delivered} delivered, {per_second:.0} per second, {waiting} wait{oldest}"
        );
        self.summary.set_message(summary.clone());
        summary
    }

    /// Waits until everything is settled.
    pub(super) async fn settle(&self, until: Instant) -> Result<(), Failure> {
        let mut ticks = tokio::time::interval(LOOKS / 4);
        while Instant::now() < until {
            ticks.tick().await;
            match self.outbox.stats().await {
                Ok(stats)
                    if stats
                        .iter()
                        .all(|one| one.pending() == 0 && !one.unsequenced) =>
                {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error @ OutboxError::Database(_)) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let message = format!(
            "orders still wait {} s after the last one",
            PATIENCE.as_secs()
        );
        Err(Failure::new(Code::No, message))
    }

    /// Leaves the screen as it is.
    pub(super) fn end(&self) {
        for bar in self.partitions.iter().chain([&self.summary]) {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_that_of_the_last_second() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut at = |millis, there| pace.at(start + Duration::from_millis(millis), there);
        assert_eq!(at(200, 50), 0.0, "nobody knows yet");
        assert_eq!(at(2_000, 300), 150.0);
        assert_eq!(at(2_900, 301), 150.0);
        assert_eq!(at(3_000, 310), 10.0);
    }
}
