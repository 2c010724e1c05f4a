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
}

pub(crate) async fn run(
    args: &Args,
    pause: bool,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let Args { queue, partition } = args;
    let outbox = context.target.outbox().await?;
    let done = on!(&outbox, handle => match pause {
        true => handle.outbox().pause(queue, *partition).await,
        false => handle.outbox().resume(queue, *partition).await,
    });
    done.map_err(|error| super::unknown_queue(&outbox, error))?;
    if output.is_json() {
        return output.json(&json!({ "queue": queue, "partition": partition, "paused": pause }));
    }
    let what = match partition {
        Some(partition) => format!("partition {partition} of {queue}"),
        None => queue.clone(),
    };
    let state = if pause { "is paused" } else { "goes on" };
    output.line(format!("{what} {state}"))
}
