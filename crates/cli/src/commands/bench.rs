//! `outbox bench`: how much the outbox does on this very database.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use outbox::{
    Backend, EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessage, OutboxProfile,
    Partitions,
};
use serde_json::json;
use sqlx::Pool;
use tokio::time::Instant;

use super::own_tables::OwnTables;
use crate::Context;
use crate::connection::on;
use crate::failure::{Code, Failure};
use crate::lock;
use crate::output::{Output, number, text};

/// Measure the outbox on your own database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox bench --database-url postgres://localhost/shop
  outbox bench --producers 16 --batch 10 --payload 2000 --seconds 30

Producers enqueue as fast as they can, each in transactions of its own, while a handler that does nothing
takes what comes. Everything happens in tables of its own, which are removed in the end. It is a load:
do not run it on a database that others need now.")]
pub(crate) struct Args {
    /// How long producers write
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// How many producers write at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    producers: u32,
    /// How many messages each transaction has
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    batch: u32,
    /// How large each payload is, in bytes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    payload: u32,
    /// How many partitions the queue has
    #[arg(long, default_value = "8", value_parser = crate::format::partitions)]
    partitions: Partitions,
}

const PREFIX: &str = "outbox_bench_";
const QUEUE: &str = "bench";
/// How long the rest may take when nobody writes any more.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the handler saw: from the call of `enqueue` to the handler, in microseconds.
type Latencies = Arc<Mutex<Vec<u64>>>;

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let connections = args.producers + 8;
    let pool = context.target.pool_of(connections).await?;
    on!(pool, pool => {
        let tables = OwnTables::claim(&pool, PREFIX, "").await?;
        tables.lend(measure(args, pool.clone(), output)).await
    })
}

async fn measure<DB: Backend>(
    args: &Args,
    pool: Pool<DB>,
    output: &mut Output,
) -> Result<(), Failure> {
    let (started, latencies) = (Instant::now(), Latencies::default());
    let handle = Outbox::builder(pool)
        .table_prefix(PREFIX)
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .queue(QUEUE, args.partitions)
        .leased(handler(started, &latencies))
        .start()
        .await?;
    let bar = super::progress(0, "enqueued");
    let begun = Instant::now();
    let until = begun + Duration::from_secs(args.seconds);
    let enqueued = AtomicUsize::new(0);
    let producers = (0..args.producers).map(async |producer| {
        while Instant::now() < until {
            produce(args, handle.outbox(), producer, started).await?;
            let before = enqueued.fetch_add(args.batch as usize, Ordering::Relaxed);
            bar.set_position(before as u64);
        }
        Ok::<_, OutboxError>(())
    });
    let produced = join_all(producers).await;
    let wrote = begun.elapsed();
    produced.into_iter().collect::<Result<Vec<()>, _>>()?;
    let enqueued = enqueued.into_inner();
    let delivered = drain(&latencies, enqueued).await;
    let took = begun.elapsed();
    bar.finish_and_clear();
    handle.stop().await;
    let mut latencies = std::mem::take(&mut *lock(&latencies));
    latencies.sort_unstable();
    let result = Measured {
        enqueued,
        wrote,
        took,
        latencies,
    };
    result.report(output)?;
    if delivered {
        return Ok(());
    }
    let message = format!(
        "not everything was delivered {} s after the last one",
        PATIENCE.as_secs()
    );
    Err(Failure::new(Code::No, message))
}

fn handler(
    started: Instant,
    latencies: &Latencies,
) -> impl Fn(OutboxMessage) -> std::future::Ready<MessageResult> + Send + Sync + use<> {
    let latencies = Arc::clone(latencies);
    move |message| {
        let sent = message
            .payload
            .first_chunk()
            .copied()
            .map_or(0, u64::from_be_bytes);
        let now = micros(started.elapsed());
        lock(&latencies).push(now.saturating_sub(sent));
        std::future::ready(MessageResult::Ok)
    }
}

/// One transaction.
async fn produce<DB: Backend>(
    args: &Args,
    outbox: &Outbox<DB>,
    producer: u32,
    started: Instant,
) -> Result<(), OutboxError> {
    let message = |_| {
        let mut payload = vec![b'x'; args.payload as usize];
        payload[..8].copy_from_slice(&micros(started.elapsed()).to_be_bytes());
        EnqueueMessage::to(
            producer % u32::from(args.partitions.count()),
            payload,
            "bench",
        )
    };
    let messages: Vec<_> = (0..args.batch).map(message).collect();
    outbox
        .transaction(async |connection: &mut DB::Connection| {
            outbox.enqueue_batch(connection, QUEUE, &messages).await
        })
        .await
        .map(drop)
}

/// Waits until the handler has seen them all. Whether it has.
async fn drain(latencies: &Latencies, enqueued: usize) -> bool {
    let until = Instant::now() + PATIENCE;
    let seen = || lock(latencies).len();
    while seen() < enqueued && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    seen() >= enqueued
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
struct Measured {
    enqueued: usize,
    wrote: Duration,
    took: Duration,
    /// Sorted.
    latencies: Vec<u64>,
}

impl Measured {
    fn quantile(&self, percent: usize) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let place = (self.latencies.len() * percent / 100).min(last);
        self.latencies
            .get(place)
            .map_or(0.0, |micros| *micros as f64 / 1000.0)
    }

    fn report(&self, output: &mut Output) -> Result<(), Failure> {
        let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64();
        let enqueued = rate(self.enqueued, self.wrote);
        let delivered = rate(self.latencies.len(), self.took);
        let [middle, p99, worst] = [50, 99, 100].map(|percent| self.quantile(percent));
        if output.is_json() {
            return output.json(&json!({
                "enqueued": self.enqueued,
                "delivered": self.latencies.len(),
                "enqueued_per_second": enqueued,
                "delivered_per_second": delivered,
                "latency_p50_ms": middle,
                "latency_p99_ms": p99,
                "latency_worst_ms": worst,
            }));
        }
        let row = |what: &str, value: String| vec![text(what), number(value)];
        output.table(
            &["", ""],
            &[
                row("messages", self.enqueued.to_string()),
                row("enqueued per second", format!("{enqueued:.0}")),
                row("delivered per second", format!("{delivered:.0}")),
                row("from enqueue to handler, p50", format!("{middle:.1} ms")),
                row("from enqueue to handler, p99", format!("{p99:.1} ms")),
                row("from enqueue to handler, worst", format!("{worst:.1} ms")),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_measured() {
        let measured = Measured {
            enqueued: 100,
            wrote: Duration::from_secs(1),
            took: Duration::from_secs(1),
            latencies: (1..=100).map(|millis| millis * 1000).collect(),
        };
        let quantiles = [0, 50, 99, 100].map(|percent| measured.quantile(percent));
        assert_eq!(quantiles, [1.0, 51.0, 100.0, 100.0]);
        let nothing = Measured {
            latencies: Vec::new(),
            ..measured
        };
        assert_eq!(nothing.quantile(99), 0.0);
    }
}
