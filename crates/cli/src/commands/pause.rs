//! `outbox pause` and `outbox resume`: deliveries of a queue or a partition, in every process.

use serde_json::json;

use crate::Context;
use crate::connection::on;
use crate::failure::Failure;
use crate::output::Output;

/// What to pause or resume
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox pause orders
  outbox resume orders --partition 3

A pause is kept in the database and honoured by every process, also by those that start later. What a
handler has in hand is finished. Enqueuing goes on.")]
pub(crate) struct Args {
    /// The queue
    queue: String,
    /// Only this partition
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
    /// Why: kept in the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(crate) async fn run(
    args: &Args,
    pause: bool,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let Args {
        queue, partition, ..
    } = args;
    let outbox = context.target.outbox().await?;
    let count = super::partitions_of(&outbox, queue)?.len();
    let place = match partition {
        Some(partition) => format!("{queue}/{partition}"),
        None => queue.clone(),
    };
    if partition.is_none_or(|partition| (partition as usize) < count) {
        let action = if pause { "pause" } else { "resume" };
        let reason = args.reason.as_deref().unwrap_or("");
        super::record(&outbox, action, &place, reason).await?;
    }
    on!(&outbox, handle => match pause {
        true => handle.outbox().pause(queue, *partition).await,
        false => handle.outbox().resume(queue, *partition).await,
    })?;
    let mut stats = super::stats_of(&outbox, queue).await?;
    stats.retain(|one| one.paused && partition.is_none_or(|wanted| wanted == one.partition));
    let paused: Vec<u32> = stats.iter().map(|one| one.partition).collect();
    if output.is_json() {
        return output.json(&json!({
            "queue": queue,
            "partition": partition,
            "paused": !paused.is_empty(),
            "paused_partitions": paused,
        }));
    }
    let what = match partition {
        Some(partition) => format!("partition {partition} of {queue}"),
        None => queue.clone(),
    };
    match (pause, partition, &*paused) {
        (true, ..) => output.line(format!("{what} is paused")),
        (false, _, []) => output.line(format!("{what} goes on")),
        (false, Some(_), _) => output.line(format!(
            "{what} stays paused as long as the queue is: `outbox resume {queue}` resumes that"
        )),
        (false, None, partitions) => {
            output.line(format!("{what} goes on"))?;
            output.line(format!(
                "still paused by themselves: partitions {partitions:?}; resume them with --partition"
            ))
        }
    }
}
