//! `outbox peek`: what waits in a queue, without taking it.

use std::time::SystemTime;

use outbox::OutboxMessage;
use serde_json::{Value, json};

use crate::Context;
use crate::connection::on;
use crate::failure::Failure;
use crate::format::{Form, age, payload_fields, timestamp};
use crate::output::{Cell, Columns, Output, number, text};

const HEAD: [&str; 7] = ["part", "seq", "id", "age", "key", "type", "payload"];

/// Look at the messages that wait in a queue, without taking them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox peek orders
  outbox peek orders --partition 3 --from 1200 --limit 50
  outbox peek orders --as hex
  outbox peek orders --json | jq -r .payload

Shown are messages that have a number, in the order in which they will come. With --json each message is
a line; a payload that is no text is in \"payload_base64\".")]
pub(crate) struct Args {
    /// The queue
    queue: String,
    /// Only this partition
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
    /// Begin with this sequence number, instead of with the head
    #[arg(long, value_name = "SEQ", requires = "partition")]
    from: Option<i64>,
    /// At most so many of each partition
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// How to show payloads
    #[arg(long = "as", value_name = "FORM", value_enum, default_value_t)]
    form: Form,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    let partitions = super::partitions_of(&outbox, &args.queue)?;
    let partitions = match args.partition {
        Some(partition) => vec![partition],
        None => (0..)
            .zip(partitions)
            .map(|(partition, _)| partition)
            .collect(),
    };
    // One partition after the other: all of them together may be more than fits into memory.
    let (mut columns, mut any) = (Columns::under(&HEAD), false);
    for partition in partitions {
        let messages = on!(&outbox, handle => {
            handle.outbox().peek(&args.queue, partition, args.from, args.limit).await
        })?;
        any |= !messages.is_empty();
        if output.is_json() {
            let mut messages = messages.iter();
            messages.try_for_each(|message| output.json(&document(message)))?;
        } else if !messages.is_empty() {
            let now = SystemTime::now();
            let rows = messages.iter().map(|message| row(message, args.form, now));
            output.rows(&mut columns, &rows.collect::<Vec<_>>())?;
        }
    }
    if any || output.is_json() {
        return Ok(());
    }
    let stats = super::stats_of(&outbox, &args.queue).await?;
    output.line(match stats.iter().any(|one| one.unsequenced) {
        true => "messages wait that have no number yet: a process with workers, such as `outbox relay`, gives it",
        false => "nothing waits",
    })
}

fn row(message: &OutboxMessage, form: Form, now: SystemTime) -> Vec<Cell> {
    vec![
        number(message.partition),
        number(message.seq),
        number(message.id),
        number(age(message.created_at, now)),
        text(message.key.as_deref().unwrap_or("-")),
        text(&message.payload_type),
        text(form.show(&message.payload)),
    ]
}

fn document(message: &OutboxMessage) -> Value {
    let mut document = json!({
        "id": message.id.to_string(),
        "queue": &*message.queue,
        "partition": message.partition,
        "seq": message.seq,
        "created_at": timestamp(message.created_at),
        "key": message.key,
        "type": message.payload_type,
        "headers": message.headers,
    });
    super::merge(&mut document, payload_fields(&message.payload));
    document
}
