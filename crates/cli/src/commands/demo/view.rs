//! What is to be seen while it runs: on a terminal a line per partition that moves, else a line per
//! second.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use outbox::{Outbox, OutboxError, PartitionStats};
use tokio::time::Instant;

use super::shop::Shop;
use super::{PARTITIONS, PATIENCE};
use crate::failure::{Code, Failure};

const LOOKS: Duration = Duration::from_millis(200);

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
        while Instant::now() < until {
            ticks.tick().await;
            // One look that fails is followed by another.
            let Ok(stats) = self.outbox.stats().await else {
                continue;
            };
            let summary = self.show(&stats, placed.load(Ordering::Relaxed));
            if !std::io::stderr().is_terminal() && said.elapsed() >= Duration::from_secs(1) {
                said = Instant::now();
                self.say(&summary);
            }
        }
    }

    fn show(&self, stats: &[PartitionStats], placed: u32) -> String {
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
        let summary = format!("{placed} orders, {delivered} delivered, {waiting} wait");
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
