//! `outbox enqueue`: messages from the command line, a file, or JSON lines.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::{
    Backend, DEFAULT_MAX_PAYLOAD, EnqueueMessage, Outbox, OutboxError, OutboxMessageId, Partitions,
    QueueName,
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Context;
use crate::commands::progress;
use crate::connection::on;
use crate::failure::Failure;
use crate::output::Output;

/// How many lines go into one transaction, and how many bytes.
const TOGETHER: usize = 500;
const TOGETHER_BYTES: usize = 4 * 1024 * 1024;

/// Put messages into a queue
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox enqueue orders '{\"order\": 42}' --key customer-7 --type order.placed
  outbox enqueue images --file cat.png --type image/png --partition 0
  outbox enqueue orders --json-lines < orders.jsonl
  outbox enqueue mail 'hello' --type text/plain --create 4

A JSON line is an object with \"payload\" (any JSON; a string is taken as it is) or \"payload_base64\", and
optionally \"key\" or \"partition\", \"type\" and \"headers\"; what it leaves out is taken from the options.
Lines are committed 500 at a time: an error says which line it is, and how many were enqueued before.")]
pub(crate) struct Args {
    /// The queue
    queue: String,
    /// The payload, as text
    payload: Option<String>,
    /// The payload is this file's content; - is standard input
    #[arg(long, value_name = "PATH", conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// Standard input has a message on each line
    #[arg(long, conflicts_with_all = ["payload", "file"])]
    json_lines: bool,
    /// Messages with the same key stay in order
    #[arg(long, conflicts_with = "partition")]
    key: Option<String>,
    /// To this partition; without it and a key, to any
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
    /// What the payload is
    #[arg(long = "type", value_name = "TYPE", default_value = "application/json")]
    payload_type: String,
    /// Make the queue, with so many partitions, if it is not there; the message can then be left out
    #[arg(long, value_name = "PARTITIONS", value_parser = crate::format::partitions)]
    create: Option<Partitions>,
    /// A header; can be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("a header is NAME=VALUE")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// A message on a line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, deserialize_with = "as_written")]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    key: Option<String>,
    partition: Option<u32>,
    #[serde(rename = "type")]
    payload_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// A null is a payload too.
fn as_written<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(json).map(Some)
}

/// Where messages go: a queue that is there.
#[derive(Debug)]
struct Desk<'a> {
    args: &'a Args,
    queue: QueueName,
    partitions: Partitions,
    /// Where the next one goes that may go anywhere.
    anywhere: u32,
}

impl<'a> Desk<'a> {
    fn new(args: &'a Args, queue: QueueName, partitions: Partitions) -> Self {
        let anywhere = RandomState::new().hash_one(()) % u64::from(partitions.count());
        Self {
            args,
            queue,
            partitions,
            anywhere: u32::try_from(anywhere).unwrap_or(0),
        }
    }

    fn message(
        &mut self,
        payload: Vec<u8>,
        key: Option<String>,
        partition: Option<u32>,
        payload_type: Option<String>,
    ) -> EnqueueMessage {
        let args = self.args;
        let key = key.or_else(|| args.key.clone().filter(|_| partition.is_none()));
        let payload_type = payload_type.unwrap_or_else(|| args.payload_type.clone());
        let message = match (key, partition.or(args.partition)) {
            (Some(key), _) => EnqueueMessage::keyed(key, payload, payload_type),
            (None, Some(partition)) => EnqueueMessage::to(partition, payload, payload_type),
            (None, None) => {
                self.anywhere = (self.anywhere + 1) % u32::from(self.partitions.count());
                EnqueueMessage::to(self.anywhere, payload, payload_type)
            }
        };
        let headers = args.headers.iter();
        headers.fold(message, |message, (name, value)| {
            message.header(name, value)
        })
    }

    fn read_line(&mut self, text: &str) -> Result<EnqueueMessage, String> {
        // It says "at line 1 column 7", and it is the line of something else.
        let told = |error: serde_json::Error| error.to_string().replace("line 1 column", "column");
        let line: Line = serde_json::from_str(text).map_err(told)?;
        let payload = match (line.payload, line.payload_base64) {
            // A string is taken as it is, everything else as it is written.
            (Some(json), None) => match serde_json::from_str(json.get()) {
                Ok(Value::String(text)) => text.into_bytes(),
                _ => json.get().as_bytes().to_vec(),
            },
            (None, Some(text)) => STANDARD
                .decode(text)
                .map_err(|error| format!("payload_base64: {error}"))?,
            (None, None) => return Err("it has neither payload nor payload_base64".to_owned()),
            (Some(_), Some(_)) => return Err("it has both payload and payload_base64".to_owned()),
        };
        if line.key.is_some() && line.partition.is_some() {
            return Err("it has both key and partition".to_owned());
        }
        let message = self.message(payload, line.key, line.partition, line.payload_type);
        let headers = line.headers.into_iter();
        let message = headers.fold(message, |message, (name, value)| {
            message.header(name, value)
        });
        let valid = message.validate(&self.queue, self.partitions, DEFAULT_MAX_PAYLOAD);
        valid.map_err(|error| error.to_string())?;
        Ok(message)
    }
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let create = args.create.map(|partitions| (&*args.queue, partitions));
    let outbox = context.target.outbox_with(create).await?;
    super::partitions_of(&outbox, &args.queue)?;
    let queues = on!(&outbox, handle => handle.outbox().queues());
    let mut queues = queues.into_iter();
    let Some((queue, partitions)) = queues.find(|(name, _)| name.as_str() == args.queue) else {
        return Err(OutboxError::QueueNotRegistered(args.queue.clone()).into());
    };
    let mut desk = Desk::new(args, queue, partitions);
    if args.json_lines {
        return on!(&outbox, handle => lines(desk, handle.outbox(), output).await);
    }
    let payload = match (&args.payload, &args.file) {
        (Some(payload), _) => payload.clone().into_bytes(),
        (None, Some(file)) if file.as_os_str() == "-" => {
            let mut payload = Vec::new();
            io::stdin().lock().read_to_end(&mut payload)?;
            payload
        }
        (None, Some(file)) => std::fs::read(file)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?,
        (None, None) if args.create.is_some() => {
            let (queue, count) = (&args.queue, args.create.map_or(0, Partitions::count));
            if output.is_json() {
                return output.json(&json!({ "queue": queue, "partitions": count }));
            }
            return output.line(format!(
                "the queue {queue} is there, with {count} partitions"
            ));
        }
        (None, None) => {
            return Err(Failure::usage("what is the message?")
                .way_out("give a payload, --file PATH, or --json-lines"));
        }
    };
    let message = desk.message(payload, None, None, None);
    let ids = on!(&outbox, handle => {
        commit(handle.outbox(), &args.queue, std::slice::from_ref(&message)).await
    })?;
    report(&ids, output)?;
    if output.is_json() {
        return Ok(());
    }
    output.line("1 message enqueued")
}

fn report(ids: &[OutboxMessageId], output: &mut Output) -> Result<(), Failure> {
    if !output.is_json() {
        return Ok(());
    }
    let mut ids = ids.iter();
    ids.try_for_each(|id| output.json(&json!({ "id": id.to_string() })))
}

async fn commit<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    messages: &[EnqueueMessage],
) -> Result<Vec<OutboxMessageId>, OutboxError> {
    outbox
        .transaction(async |connection: &mut DB::Connection| {
            outbox.enqueue_batch(connection, queue, messages).await
        })
        .await
}

/// Whether the database has said that it refused: otherwise the reply to its commit may have been lost.
fn is_certain(error: &OutboxError) -> bool {
    match error {
        OutboxError::NoAnswer { .. } => false,
        OutboxError::Database(error) => matches!(error, sqlx::Error::Database(_)),
        _ => true,
    }
}

async fn lines<DB: Backend>(
    mut desk: Desk<'_>,
    outbox: &Outbox<DB>,
    output: &mut Output,
) -> Result<(), Failure> {
    let bar = progress(0, "enqueued");
    let (mut done, mut batch) = (0, Vec::with_capacity(TOGETHER));
    let mut bytes = 0;
    let mut input = io::stdin().lock().lines().zip(1_u64..).peekable();
    while let Some((line, number)) = input.next() {
        let line = line.map_err(|error| {
            Failure::usage(format!("line {number}: {error}")).way_out(format!(
                "{done} messages of the lines before it were enqueued"
            ))
        })?;
        if !line.trim().is_empty() {
            let message = desk.read_line(&line).map_err(|error| {
                Failure::usage(format!("line {number}: {error}")).way_out(format!(
                    "{done} messages of the lines before it were enqueued"
                ))
            })?;
            bytes += message.payload().len();
            batch.push(message);
        }
        let full = batch.len() == TOGETHER || bytes >= TOGETHER_BYTES;
        if full || input.peek().is_none() {
            let ids = commit(outbox, desk.queue.as_str(), &batch)
                .await
                .map_err(|error| {
                    let these = format!("the {} up to line {number}", batch.len());
                    let fate = match is_certain(&error) {
                        true => format!("none of {these}"),
                        false => {
                            format!("nobody knows about {these}: `outbox peek` shows what is there")
                        }
                    };
                    Failure::from(error).way_out(format!("{done} messages were enqueued; {fate}"))
                })?;
            report(&ids, output)?;
            done += batch.len();
            bar.set_position(done as u64);
            batch.clear();
            bytes = 0;
        }
    }
    bar.finish_and_clear();
    if output.is_json() {
        return Ok(());
    }
    output.line(format!("{done} messages enqueued"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    #[derive(clap::Parser)]
    struct Enqueue {
        #[command(flatten)]
        args: Args,
    }

    fn payload(line: &str) -> Result<String, String> {
        let Enqueue { args } = Enqueue::parse_from(["enqueue", "orders", "--json-lines"]);
        let mut desk = Desk::new(&args, "orders".parse().unwrap(), Partitions::of(4));
        let message = desk.read_line(line)?;
        Ok(String::from_utf8_lossy(message.payload()).into_owned())
    }

    proptest! {
        #[test]
        fn a_header_is_what_stands_around_the_first_sign(text in "[a-z=]{0,9}|(?s:.{0,20})") {
            match (header(&text), text.find('=')) {
                (Ok((name, value)), Some(sign)) => {
                    prop_assert_eq!((&*name, &*value), (&text[..sign], &text[sign + 1..]));
                }
                (Err(_), None) => {}
                (read, _) => prop_assert!(false, "{:?}", read),
            }
        }

        #[test]
        fn any_line_is_a_message_or_refused(
            line in "(?s:.{0,40})|[{](\"(payload|payload_base64|key|partition|type|headers)\": ?(\"[a-z=]{0,4}\"|-?[0-9]{1,3}|null|[{][}]|\\[),?){0,4}[}]?",
        ) {
            let _ = payload(&line);
        }

        #[test]
        fn what_a_line_says_is_enqueued(
            bytes in any::<Vec<u8>>(),
            key in "[^\0]{0,20}",
            payload_type in "[ -~]{1,20}",
            headers in btree_map("[ -~]{1,9}", "[^\0]{0,20}", 0..4),
        ) {
            let line = json!({
                "payload_base64": STANDARD.encode(&bytes),
                "key": key,
                "type": payload_type,
                "headers": headers,
            });
            let Enqueue { args } = Enqueue::parse_from(["enqueue", "orders", "--json-lines"]);
            let queue = "orders".parse().map_err(|_| TestCaseError::fail("a name"))?;
            let message = Desk::new(&args, queue, Partitions::of(4)).read_line(&line.to_string());
            let message = message.map_err(TestCaseError::fail)?;
            prop_assert_eq!(message.payload(), bytes);
            prop_assert_eq!(message.key(), Some(&*key));
            prop_assert_eq!(message.payload_type(), payload_type);
            let read = message.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
            prop_assert_eq!(read.collect::<BTreeMap<_, _>>(), headers);
        }
    }

    #[test]
    fn a_payload_is_enqueued_as_it_is_written() {
        let odd = r#"{"z":1,"a":123456789012345678901234567890,"d":1.10}"#;
        assert_eq!(
            payload(&format!("{{\"payload\":{odd}}}")).as_deref(),
            Ok(odd)
        );
        assert_eq!(
            payload(r#"{"payload":"pl\u0061in"}"#).as_deref(),
            Ok("plain")
        );
        assert_eq!(payload(r#"{"payload":null}"#).as_deref(), Ok("null"));
        assert_eq!(payload(r#"{"payload_base64":"aGk="}"#).as_deref(), Ok("hi"));
        assert!(payload(r#"{"key":"k"}"#).unwrap_err().contains("neither"));
        let late = payload(r#"{"payload":1,"partition":4}"#).unwrap_err();
        assert!(late.contains("the highest is 3"), "{late}");
        let Enqueue { args } = Enqueue::parse_from(["enqueue", "orders", "--json-lines"]);
        let partitions = Partitions::of(4);
        let mut desk = Desk::new(&args, "orders".parse().unwrap(), partitions);
        let lines = (0..4).map(|_| desk.read_line(r#"{"payload":1}"#).unwrap());
        let mut places: Vec<_> = lines.map(|line| line.partition_in(partitions)).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3], "without a key, to all of them");
        let odd = payload("{x").unwrap_err();
        assert!(odd.ends_with(" at column 2"), "{odd}");
    }
}
