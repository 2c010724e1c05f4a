//! `outbox skip`: puts the head of a stuck partition into the dead letters.

use serde_json::json;

use crate::Context;
use crate::ask::Confirmation;
use crate::connection::on;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// Put the first message of a stuck partition into the dead letters, so that the next one can come
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox peek orders --partition 3 --limit 1
  outbox skip orders --partition 3 --reason 'address is gone, ticket 4711'

The message is not lost: see `outbox dead-letters`. A handler that is at it loses its lease and cannot
settle it any more. Works on a paused partition, which stays paused.")]
pub(crate) struct Args {
    /// The queue
    queue: String,
    /// The partition
    #[arg(long, value_name = "NUMBER")]
    partition: u32,
    /// Why: kept with the dead letter
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    confirmation: Confirmation,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let Args {
        queue,
        partition,
        reason,
        confirmation,
    } = args;
    let outbox = context.target.outbox().await?;
    let head = on!(&outbox, handle => handle.outbox().peek(queue, *partition, None, 1).await);
    let head = head.map_err(|error| super::unknown_queue(&outbox, error))?;
    let mut stats = super::stats_of(&outbox, queue).await?.into_iter();
    let stats = stats.find(|one| one.partition == *partition);
    let Some(head) = head.first() else {
        let place = format!("partition {partition} of {queue}");
        let failure = |message| Failure::new(Code::Missing, message);
        return Err(match stats.is_some_and(|one| one.unsequenced) {
            true => failure(format!("what waits in {place} has no number yet"))
                .way_out("a process with workers, such as `outbox relay`, gives it"),
            false => failure(format!("nothing waits in {place}")),
        });
    };
    confirmation.ask(&format!(
        "put message {} (number {} of partition {partition} of {queue}) into the dead letters",
        head.id, head.seq
    ))?;
    let skipped = head.id;
    let reason = match stats.and_then(|one| one.last_error) {
        Some(error) => format!("{reason} (it had failed: {error})"),
        None => reason.clone(),
    };
    let target = format!("{queue}/{partition}, message {skipped}");
    super::record(&outbox, "skip", &target, &args.reason).await?;
    let skip = on!(&outbox, handle => {
        handle.outbox().skip_message(queue, *partition, skipped, &reason).await
    });
    if !skip? {
        let message = format!("message {skipped} was settled meanwhile: nothing was skipped");
        return Err(Failure::new(Code::Missing, message).way_out("look again with: outbox peek"));
    }
    if output.is_json() {
        let id = skipped.to_string();
        return output.json(&json!({ "queue": queue, "partition": partition, "skipped": id }));
    }
    output.line(format!(
        "message {skipped} is in the dead letters; the next one comes"
    ))
}
