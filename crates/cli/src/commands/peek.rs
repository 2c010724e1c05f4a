//! `outbox peek`: what waits in a queue, without taking it.

use std::time::SystemTime;

use outbox::OutboxMessage;
use serde_json::{Value, json};

use crate::Context;
use crate::connection::on;
use crate::failure::Failure;
use crate::format::{Form, age, payload_fields, timestamp};
use crate::output::{Cell, Output, number, text};

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
    let mut messages = Vec::new();
    for partition in partitions {
        let peek = on!(&outbox, handle => {
            handle.outbox().peek(&args.queue, partition, args.from, args.limit).await
        });
        messages.append(&mut peek?);
    }
    if output.is_json() {
        return messages
            .iter()
            .try_for_each(|message| output.json(&document(message)));
    }
    if messages.is_empty() {
        let stats = super::stats_of(&outbox, &args.queue).await?;
        return output.line(match stats.iter().any(|one| one.unsequenced) {
            true => "messages wait that have no number yet: a process with workers, such as `outbox relay`, gives it",
            false => "nothing waits",
        });
    }
    let now = SystemTime::now();
    let rows: Vec<_> = messages
        .iter()
        .map(|message| row(message, args.form, now))
        .collect();
    output.table(
        &["part", "seq", "id", "age", "key", "type", "payload"],
        &rows,
    )
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
