//! Looking at dead letters.

use std::time::SystemTime;

use clap::ValueEnum;
use outbox::{DeadLetter, DeadLetterStatus};
use serde_json::{Value, json};

use super::{Page, list, one};
use crate::commands::merge;
use crate::connection::AnyOutbox;
use crate::failure::Failure;
use crate::format::{Form, age, payload_fields, timestamp};
use crate::output::{Cell, Output, number, on_one_line, text};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Pending,
    Reprocessing,
    Resolved,
    Discarded,
}

impl From<Status> for DeadLetterStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Reprocessing => Self::Reprocessing,
            Status::Resolved => Self::Resolved,
            Status::Discarded => Self::Discarded,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters list --queue orders --status pending
  outbox dead-letters list --limit 1000 --json | jq -r .last_error | sort | uniq -c")]
pub(super) struct List {
    #[command(flatten)]
    page: Page,
    /// Only those in this state
    #[arg(long, value_enum, help_heading = "Which")]
    status: Option<Status>,
    /// Only those with a lower number: the page after one that ended with it
    #[arg(long, value_name = "ID", help_heading = "Which")]
    before: Option<i64>,
}

impl List {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let mut filter = self.page.of(outbox)?;
        if let Some(status) = self.status {
            filter = filter.status(status.into());
        }
        if let Some(before) = self.before {
            filter = filter.ids(i64::MIN..=before.saturating_sub(1));
        }
        let letters = list(outbox, filter, output.is_json()).await?;
        print(&letters, output)?;
        match letters.last() {
            Some(last) if !output.is_json() && letters.len() == self.page.limit as usize => {
                output.line(format!("\nthere may be more: --before {}", last.id))
            }
            _ => Ok(()),
        }
    }
}

/// A table, or a line per letter.
pub(super) fn print(letters: &[DeadLetter], output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        let mut letters = letters.iter();
        return letters.try_for_each(|letter| output.json(&document(letter)));
    }
    if letters.is_empty() {
        return output.line("no dead letters");
    }
    let now = SystemTime::now();
    let rows: Vec<_> = letters.iter().map(|letter| row(letter, now)).collect();
    let head = [
        "id", "queue", "part", "seq", "type", "failed", "attempts", "status", "error",
    ];
    output.table(&head, &rows)
}

fn row(letter: &DeadLetter, now: SystemTime) -> Vec<Cell> {
    vec![
        number(letter.id),
        text(&letter.queue),
        number(letter.partition),
        number(letter.seq),
        text(&letter.payload_type),
        number(age(letter.failed_at, now)),
        number(letter.attempts),
        text(letter.status),
        text(&letter.last_error),
    ]
}

fn document(letter: &DeadLetter) -> Value {
    let mut document = json!({
        "id": letter.id,
        "queue": letter.queue,
        "partition": letter.partition,
        "seq": letter.seq,
        "message_id": letter.message_id.to_string(),
        "type": letter.payload_type,
        "key": letter.key,
        "headers": letter.headers,
        "created_at": timestamp(letter.created_at),
        "failed_at": timestamp(letter.failed_at),
        "attempts": letter.attempts,
        "last_error": letter.last_error,
        "status": letter.status.as_str(),
        "deadline": letter.deadline.map(timestamp),
        "completed_at": letter.completed_at.map(timestamp),
        "requeued_as": letter.requeued_as.map(|id| id.to_string()),
        "claim_token": letter.claim_token,
    });
    merge(&mut document, payload_fields(&letter.payload));
    document
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters show 17
  outbox dead-letters show 17 --as hex")]
pub(super) struct Show {
    /// Its number
    id: i64,
    /// How to show its payload
    #[arg(long = "as", value_name = "FORM", value_enum, default_value_t)]
    form: Form,
}

impl Show {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letter = one(outbox, self.id, true).await?;
        if output.is_json() {
            return output.json(&document(&letter));
        }
        let now = SystemTime::now();
        let time = |time| format!("{} ({} ago)", timestamp(time), age(time, now));
        let mut fields = vec![
            ("dead letter", letter.id.to_string()),
            ("status", letter.status.to_string()),
            (
                "queue",
                format!("{}, partition {}", letter.queue, letter.partition),
            ),
            (
                "message",
                format!("{} (number {})", letter.message_id, letter.seq),
            ),
            ("type", letter.payload_type.clone()),
            ("created", time(letter.created_at)),
            ("failed", time(letter.failed_at)),
            ("attempts", letter.attempts.to_string()),
            ("error", letter.last_error.clone()),
        ];
        fields.extend(letter.key.clone().map(|key| ("key", key)));
        fields.extend(
            letter
                .deadline
                .map(|until| ("claimed until", timestamp(until))),
        );
        fields.extend(letter.completed_at.map(|at| ("ended", time(at))));
        fields.extend(letter.requeued_as.map(|id| ("requeued as", id.to_string())));
        let headers = letter.headers.iter();
        fields.extend(headers.map(|(name, value)| ("header", format!("{name}: {value}"))));
        for (name, value) in fields {
            output.line(format!("{name:<14}{}", on_one_line(&value)))?;
        }
        output.line(format!("payload       {} bytes\n", letter.payload.len()))?;
        let lines = self.form.show(&letter.payload);
        lines
            .lines()
            .try_for_each(|line| output.line(on_one_line(line)))
    }
}
