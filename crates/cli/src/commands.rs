//! The subcommands, one file each, with its `Args` and its `run`; and what they share.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod dashboard;
pub(crate) mod dead_letters;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod migrate;
mod own_tables;
pub(crate) mod pause;
pub(crate) mod peek;
pub(crate) mod relay;
pub(crate) mod repair;
pub(crate) mod skip;
pub(crate) mod status;
pub(crate) mod top;

use indicatif::{ProgressBar, ProgressStyle};
use outbox::{OutboxError, PartitionStats};
use serde_json::Value;

use crate::connection::{AnyOutbox, on};
use crate::failure::{Code, Failure};

/// An error that names the queues there are, if the one that was asked for is not among them.
fn unknown_queue(outbox: &AnyOutbox, error: OutboxError) -> Failure {
    let OutboxError::QueueNotRegistered(queue) = error else {
        return error.into();
    };
    let queues = on!(outbox, handle => handle.outbox().queues());
    let known: Vec<&str> = queues.iter().map(|(name, _)| name.as_str()).collect();
    Failure::new(Code::Missing, format!("there is no queue {queue:?}")).way_out(match &*known {
        [] => {
            "there are none yet: a process makes them when it starts, or `outbox enqueue --create`"
                .to_owned()
        }
        known => format!("there are: {}", known.join(", ")),
    })
}

/// The partitions of a queue; an unknown one is an error, and not one without anything in it.
fn partitions_of(outbox: &AnyOutbox, queue: &str) -> Result<Vec<i64>, Failure> {
    on!(outbox, handle => handle.outbox().partition_ids(queue))
        .map_err(|error| unknown_queue(outbox, error))
}

/// What is known of a queue's partitions.
async fn stats_of(outbox: &AnyOutbox, queue: &str) -> Result<Vec<PartitionStats>, Failure> {
    let mut stats = on!(outbox, handle => handle.outbox().stats().await)?;
    stats.retain(|partition| partition.queue == queue);
    Ok(stats)
}

/// Writes down what is about to be done by hand. What cannot be written down is not done.
async fn record(
    outbox: &AnyOutbox,
    action: &'static str,
    target: &str,
    reason: &str,
) -> Result<(), Failure> {
    let names = ["USER", "LOGNAME", "USERNAME"].into_iter();
    let user = names.filter_map(|name| std::env::var(name).ok()).next();
    let actor = format!("{} (command)", user.as_deref().unwrap_or("somebody"));
    let recorded =
        on!(outbox, handle => handle.outbox().audit(&actor, action, target, reason).await);
    let unwritten = "nothing was done, for it cannot be written into the audit log";
    recorded.map_err(|error| Failure::from(error).so(unwritten))
}

/// Adds the fields of one JSON object to another.
fn merge(document: &mut Value, more: Value) {
    if let (Value::Object(document), Value::Object(more)) = (document, more) {
        document.extend(more);
    }
}

/// Progress on standard error, where somebody looks; of an unknown length if that is 0.
fn progress(length: u64, done: &'static str) -> ProgressBar {
    let (bar, template) = match length {
        0 => (
            ProgressBar::new_spinner(),
            "{spinner} {pos} {msg} ({per_sec})",
        ),
        length => (
            ProgressBar::new(length),
            "{wide_bar} {pos}/{len} {msg} ({eta} left)",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(done)
}
