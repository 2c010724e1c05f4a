//! `outbox status`: what waits, since when, who has it, and what is wrong.

use std::time::{Duration, SystemTime};

use outbox::PartitionStats;
use serde_json::{Value, json};

use crate::Context;
use crate::connection::{AnyOutbox, on};
use crate::failure::{Code, Failure};
use crate::format::{age, timestamp};
use crate::output::{Cell, Output, number, text};

/// Show what waits in every queue, since when, and who is at it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox status
  outbox status orders --watch
  outbox status --json | jq '.partitions[] | select(.pending > 1000)'

\"pending\" is the last number given out less the last one settled: exact and cheap. What has no number yet is
shown as a +: it was committed a moment ago, or, if it stays, no process is running that gives numbers.")]
pub(crate) struct Args {
    /// Only this queue
    queue: Option<String>,
    /// Again and again, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often, with --watch
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch", value_parser = crate::format::duration)]
    every: Duration,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    if let Some(queue) = &args.queue {
        super::partitions_of(&outbox, queue)?;
    }
    if !args.watch {
        return show(args, &outbox, output).await;
    }
    let mut ticks = tokio::time::interval(args.every.max(Duration::from_millis(100)));
    loop {
        ticks.tick().await;
        if !output.is_json() {
            output.clear()?;
        }
        match show(args, &outbox, output).await {
            // A database that restarts comes back.
            Err(failure) if failure.code() == Code::Database => drop(failure.report()),
            shown => shown?,
        }
        if output.is_unheard() {
            return Ok(());
        }
    }
}

async fn show(args: &Args, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
    let stats = match &args.queue {
        Some(queue) => super::stats_of(outbox, queue).await?,
        None => on!(outbox, handle => handle.outbox().stats().await)?,
    };
    let now = SystemTime::now();
    if output.is_json() {
        let partitions: Vec<Value> = stats.iter().map(document).collect();
        return output.json(&json!({ "at": timestamp(now), "partitions": partitions }));
    }
    if stats.is_empty() {
        return output.line("there are no queues yet: a process makes them when it starts, or `outbox enqueue --create`");
    }
    let rows: Vec<_> = stats.iter().map(|partition| row(partition, now)).collect();
    output.table(
        &[
            "queue", "part", "pending", "oldest", "seq", "cursor", "epoch", "attempts", "dead",
            "holder", "state",
        ],
        &rows,
    )
}

fn row(partition: &PartitionStats, now: SystemTime) -> Vec<Cell> {
    let more = if partition.unsequenced { "+" } else { "" };
    let oldest = partition.head_created_at;
    let oldest = oldest.map_or_else(|| "-".to_owned(), |since| age(since, now));
    let state = match (&partition.last_error, partition.paused) {
        (Some(error), true) => format!("paused; {error}"),
        (None, true) => "paused".to_owned(),
        (Some(error), false) if partition.attempts > 0 => format!("failing: {error}"),
        _ => String::new(),
    };
    vec![
        text(&partition.queue),
        number(partition.partition),
        number(format!("{}{more}", partition.pending())),
        number(oldest),
        number(partition.last_seq),
        number(partition.processed_seq),
        number(partition.epoch),
        number(partition.attempts).alarming(partition.attempts > 0),
        number(partition.dead_letters).alarming(partition.dead_letters > 0),
        text(partition.holder.as_deref().unwrap_or("-")).faint(),
        text(state).alarming(true),
    ]
}

fn document(partition: &PartitionStats) -> Value {
    json!({
        "queue": partition.queue,
        "partition": partition.partition,
        "partition_id": partition.partition_id,
        "pending": partition.pending(),
        "unsequenced": partition.unsequenced,
        "last_seq": partition.last_seq,
        "processed_seq": partition.processed_seq,
        "head_created_at": partition.head_created_at.map(timestamp),
        "attempts": partition.attempts,
        "last_error": partition.last_error,
        "paused": partition.paused,
        "holder": partition.holder,
        "epoch": partition.epoch,
        "dead_letters": partition.dead_letters,
    })
}
