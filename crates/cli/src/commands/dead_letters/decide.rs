//! Deciding what becomes of dead letters.

use std::time::Duration;

use outbox::{DeadLetter, OutboxError};
use serde_json::json;

use super::{Filter, Selection, look, one};
use crate::ask::Confirmation;
use crate::commands::{progress, record};
use crate::connection::{AnyOutbox, on};
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(super) struct Requeue {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Requeue {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.selection.letters(outbox).await?;
        if self.selection.dry_run {
            return look::print(&letters, output);
        }
        if self.selection.ids.is_empty() && !letters.is_empty() {
            self.confirmation
                .ask(&format!("requeue {} dead letters", letters.len()))?;
        }
        let bar = progress(letters.len() as u64, "requeued");
        let mut done = 0;
        for letter in &letters {
            let requeued =
                on!(outbox, handle => handle.outbox().dead_letter_requeue(letter.id).await);
            bar.inc(1);
            let id = match requeued {
                Ok(id) => id,
                // Somebody else has decided about this one; the others are still to be requeued.
                Err(OutboxError::DeadLetterNotPending(_)) => continue,
                Err(error) => {
                    record(
                        outbox,
                        "requeue",
                        &counted(done, &letters),
                        "then it failed",
                    )
                    .await;
                    return Err(partly(error.into(), done, letters.len()));
                }
            };
            done += 1;
            if output.is_json() {
                output.json(&json!({ "id": letter.id, "requeued_as": id.to_string() }))?;
            }
        }
        bar.finish_and_clear();
        let target = counted(done, &letters);
        record(outbox, "requeue", &target, "").await;
        if !output.is_json() {
            output.line(format!("{done} requeued"))?;
        }
        all_of("requeued", done, letters.len())
    }
}

/// How many of them, for the audit log.
fn counted(done: u64, letters: &[DeadLetter]) -> String {
    match letters {
        [one] => format!("dead letter {}", one.id),
        [] => "no dead letter".to_owned(),
        letters => {
            let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
            format!("{done} of {} dead letters: {ids:?}", letters.len())
        }
    }
}

/// Says how far it came before it failed.
fn partly(failure: Failure, done: u64, of: usize) -> Failure {
    if done == 0 {
        return failure;
    }
    failure.way_out(format!(
        "{done} of {of} were requeued before; run it again for the rest"
    ))
}

#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    #[command(flatten)]
    filter: Filter,
    /// How long nobody else gets them
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = crate::format::duration, help_heading = None::<&'static str>)]
    claim: Duration,
}

impl Replay {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let filter = self.filter.of(outbox)?;
        let claimed =
            on!(outbox, handle => handle.outbox().dead_letter_replay(&filter, self.claim).await)?;
        look::print(&claimed, output)?;
        let token = claimed
            .first()
            .and_then(|letter| letter.claim_token.as_ref());
        match token {
            Some(token) if !output.is_json() => output.line(format!(
                "\nclaimed for {}: end each with `resolve` or `reject`, and --token {token}",
                humantime::format_duration(self.claim)
            )),
            _ => Ok(()),
        }
    }
}

/// Claimed ones.
#[derive(Debug, clap::Args)]
struct Claimed {
    /// Their numbers
    #[arg(required = true)]
    ids: Vec<i64>,
    /// What `replay` printed
    #[arg(long)]
    token: String,
}

impl Claimed {
    async fn letters(&self, outbox: &AnyOutbox) -> Result<Vec<DeadLetter>, Failure> {
        let mut letters = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            let mut letter = one(outbox, *id).await?;
            letter.claim_token = Some(self.token.clone());
            letters.push(letter);
        }
        Ok(letters)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Resolve {
    #[command(flatten)]
    claimed: Claimed,
}

impl Resolve {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.claimed.letters(outbox).await?;
        let done = on!(outbox, handle => handle.outbox().dead_letter_resolve(&letters).await)?;
        record(outbox, "resolve", &counted(done, &letters), "").await;
        ended("resolved", done, letters.len(), output)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Reject {
    #[command(flatten)]
    claimed: Claimed,
    /// Why: kept with the dead letter
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl Reject {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.claimed.letters(outbox).await?;
        let reject =
            on!(outbox, handle => handle.outbox().dead_letter_reject(&letters, &self.reason).await);
        let done = reject?;
        record(outbox, "reject", &counted(done, &letters), &self.reason).await;
        ended("rejected", done, letters.len(), output)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Discard {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    confirmation: Confirmation,
    /// Why: kept in the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Discard {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.selection.letters(outbox).await?;
        if self.selection.dry_run {
            return look::print(&letters, output);
        }
        if !letters.is_empty() {
            self.confirmation
                .ask(&format!("discard {} dead letters", letters.len()))?;
        }
        let done = on!(outbox, handle => handle.outbox().dead_letter_discard(&letters).await)?;
        let reason = self.reason.as_deref().unwrap_or("");
        record(outbox, "discard", &counted(done, &letters), reason).await;
        ended("discarded", done, letters.len(), output)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Cleanup {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Cleanup {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let filter = self.filter.of(outbox)?;
        self.confirmation
            .ask("delete dead letters that were resolved or discarded")?;
        let done = on!(outbox, handle => handle.outbox().dead_letter_cleanup(&filter).await)?;
        record(outbox, "clean up", &format!("{done} dead letters"), "").await;
        if output.is_json() {
            return output.json(&json!({ "deleted": done }));
        }
        let more = if done >= u64::from(self.filter.limit) {
            "; there may be more: run it again, or raise --limit"
        } else {
            ""
        };
        output.line(format!("{done} deleted{more}"))
    }
}

/// Those that were not in a state for it are an error: somebody should know.
fn ended(what: &str, done: u64, of: usize, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        output.json(&json!({ what: done, "of": of }))?;
    } else {
        output.line(format!("{done} {what}"))?;
    }
    all_of(what, done, of)
}

/// Says so if some were left.
fn all_of(what: &str, done: u64, of: usize) -> Result<(), Failure> {
    if done == of as u64 {
        return Ok(());
    }
    let message = format!("{} of {of} could not be {what}", of as u64 - done);
    Err(Failure::new(Code::Missing, message)
        .way_out("a claim ran out or is another's, or somebody ended them: look at them again"))
}
