//! Deciding what becomes of dead letters.

use std::time::{Duration, SystemTime};

use outbox::{DeadLetter, DeadLetterFilter, DeadLetterStatus, OutboxError};
use serde_json::json;

use super::{Page, Selection, list, look, one};
use crate::ask::Confirmation;
use crate::commands::{progress, record};
use crate::connection::{AnyOutbox, on};
use crate::failure::{Code, Failure};
use crate::output::Output;

/// Of how many dead letters it is told how they are.
const MOST_TOLD: usize = 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters requeue 17 18
  outbox dead-letters requeue --queue orders --type order.placed --dry-run
  outbox dead-letters requeue --queue orders --limit 5000 --yes")]
pub(super) struct Requeue {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Requeue {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.selection.letters(outbox, output).await?;
        if self.selection.dry_run {
            return look::print(&letters, output);
        }
        if self.selection.ids.is_empty() && !letters.is_empty() {
            self.confirmation
                .ask(&format!("requeue {} dead letters", letters.len()))?;
        }
        note("requeue", outbox, &letters, "").await?;
        let bar = progress(letters.len() as u64, "requeued");
        let mut done = 0;
        for letter in &letters {
            let requeued =
                on!(outbox, handle => handle.outbox().dead_letter_requeue(letter.id).await);
            bar.inc(1);
            let id = match requeued {
                Ok(id) => Some(id.to_string()),
                // Somebody else has decided about this one; the others are still to be requeued.
                Err(OutboxError::DeadLetterNotPending(_)) => None,
                Err(error) => return Err(partly(error.into(), done, letters.len())),
            };
            done += u64::from(id.is_some());
            if output.is_json() {
                output.json(&json!({ "id": letter.id, "requeued_as": id }))?;
            }
        }
        bar.finish_and_clear();
        if !output.is_json() {
            output.line(format!("{done} requeued"))?;
        }
        all_of("requeued", done, outbox, &letters).await
    }
}

/// Writes into the audit log what becomes of which dead letters, if any.
async fn note(
    action: &'static str,
    outbox: &AnyOutbox,
    letters: &[DeadLetter],
    reason: &str,
) -> Result<(), Failure> {
    let target = match letters {
        [] => return Ok(()),
        [one] => format!("dead letter {}", one.id),
        letters => {
            let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
            format!("{} dead letters: {ids:?}", letters.len())
        }
    };
    record(outbox, action, &target, reason).await
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
#[command(after_help = "Examples:
  outbox dead-letters replay --queue orders --dry-run
  outbox dead-letters replay --queue orders --limit 10 --for 30m")]
pub(super) struct Replay {
    #[command(flatten)]
    page: Page,
    /// Only say how many would be claimed
    #[arg(long, help_heading = None::<&'static str>)]
    dry_run: bool,
    /// How long nobody else gets them
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = crate::format::duration, help_heading = None::<&'static str>)]
    claim: Duration,
}

impl Replay {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let filter = self.page.of(outbox)?;
        if self.dry_run {
            let most = free(outbox, &filter).await?.min(self.page.limit.into());
            return match output.is_json() {
                true => output.json(&json!({ "would_claim": most })),
                false => output.line(format!("{most} would be claimed")),
            };
        }
        record(outbox, "replay", &self.page.described(), "").await?;
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

/// How many of those that a filter lets through wait, or were claimed until a moment that has passed; of the
/// latter not more than its limit are looked at.
async fn free(outbox: &AnyOutbox, filter: &DeadLetterFilter) -> Result<u64, Failure> {
    let pending = filter.clone().status(DeadLetterStatus::Pending);
    let pending = on!(outbox, handle => handle.outbox().dead_letter_count(&pending).await)?;
    let claimed = filter.clone().status(DeadLetterStatus::Reprocessing);
    let now = SystemTime::now();
    let claimed = list(outbox, claimed, false).await?.into_iter();
    let over = claimed.filter(|letter| letter.deadline.is_some_and(|until| until <= now));
    Ok(pending + over.count() as u64)
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
            let mut letter = one(outbox, *id, false).await?;
            letter.claim_token = Some(self.token.clone());
            letters.push(letter);
        }
        Ok(letters)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters resolve 17 18 --token 4f6c…")]
pub(super) struct Resolve {
    #[command(flatten)]
    claimed: Claimed,
}

impl Resolve {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let letters = self.claimed.letters(outbox).await?;
        note("resolve", outbox, &letters, "").await?;
        let done = on!(outbox, handle => handle.outbox().dead_letter_resolve(&letters).await)?;
        conclude("resolved", done, outbox, &letters, output).await
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters reject 17 --token 4f6c… --reason 'the address is still unknown'")]
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
        note("reject", outbox, &letters, &self.reason).await?;
        let reject =
            on!(outbox, handle => handle.outbox().dead_letter_reject(&letters, &self.reason).await);
        let done = reject?;
        conclude("rejected", done, outbox, &letters, output).await
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters discard 17 --reason 'a test order, ticket 4711'
  outbox dead-letters discard --queue orders --type order.draft --dry-run")]
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
        let letters = self.selection.letters(outbox, output).await?;
        if self.selection.dry_run {
            return look::print(&letters, output);
        }
        if !letters.is_empty() {
            self.confirmation
                .ask(&format!("discard {} dead letters", letters.len()))?;
        }
        let reason = self.reason.as_deref().unwrap_or("");
        note("discard", outbox, &letters, reason).await?;
        let done = on!(outbox, handle => handle.outbox().dead_letter_discard(&letters).await)?;
        conclude("discarded", done, outbox, &letters, output).await
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters cleanup --dry-run
  outbox dead-letters cleanup --queue orders --limit 10000 --yes")]
pub(super) struct Cleanup {
    #[command(flatten)]
    page: Page,
    /// Only say how many would be deleted
    #[arg(long, help_heading = None::<&'static str>)]
    dry_run: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Cleanup {
    pub(super) async fn run(&self, outbox: &AnyOutbox, output: &mut Output) -> Result<(), Failure> {
        let filter = self.page.of(outbox)?;
        // Whoever says yes beforehand need not wait until all are counted.
        if self.dry_run || !self.confirmation.is_given() {
            let there = ended(outbox, &filter).await?;
            let most = there.min(self.page.limit.into());
            if self.dry_run {
                return say(most, there, output);
            }
            if most == 0 {
                return self.told(0, output);
            }
            let of = match most < there {
                true => format!(" of {there}"),
                false => String::new(),
            };
            self.confirmation.ask(&format!(
                "delete {most}{of} dead letters that were resolved or discarded"
            ))?;
        }
        record(outbox, "clean up", &self.page.described(), "").await?;
        let done = on!(outbox, handle => handle.outbox().dead_letter_cleanup(&filter).await)?;
        self.told(done, output)
    }

    fn told(&self, done: u64, output: &mut Output) -> Result<(), Failure> {
        let more = done > 0 && done >= u64::from(self.page.limit);
        if output.is_json() {
            return output.json(&json!({ "deleted": done, "maybe_more": more }));
        }
        let more = match more {
            true => "; there may be more: run it again, or raise --limit",
            false => "",
        };
        output.line(format!("{done} deleted{more}"))
    }
}

/// How many of those that a filter lets through were resolved or discarded, whatever its limit.
async fn ended(outbox: &AnyOutbox, filter: &DeadLetterFilter) -> Result<u64, Failure> {
    let mut there = 0;
    for status in [DeadLetterStatus::Resolved, DeadLetterStatus::Discarded] {
        let filter = filter.clone().status(status);
        there += on!(outbox, handle => handle.outbox().dead_letter_count(&filter).await)?;
    }
    Ok(there)
}

/// Says what `cleanup` would do.
fn say(most: u64, there: u64, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(&json!({ "would_delete": most, "of": there }));
    }
    output.line(match most < there {
        true => format!("{most} of {there} would be deleted: --limit is {most}"),
        false => format!("{most} would be deleted"),
    })
}

/// Those that were not in a state for it are an error: somebody should know.
async fn conclude(
    what: &str,
    done: u64,
    outbox: &AnyOutbox,
    letters: &[DeadLetter],
    output: &mut Output,
) -> Result<(), Failure> {
    if output.is_json() {
        output.json(&json!({ what: done, "of": letters.len() }))?;
    } else {
        output.line(format!("{done} {what}"))?;
    }
    all_of(what, done, outbox, letters).await
}

/// Says so if some were left, and how they all are now: nobody knows which those were that it was done to.
async fn all_of(
    what: &str,
    done: u64,
    outbox: &AnyOutbox,
    letters: &[DeadLetter],
) -> Result<(), Failure> {
    let of = letters.len();
    if done == of as u64 {
        return Ok(());
    }
    let mut now = Vec::new();
    for letter in letters.iter().take(MOST_TOLD) {
        now.push(match one(outbox, letter.id, false).await {
            Ok(found) => format!("{} is {}", found.id, found.status),
            Err(_) => format!("{} is gone", letter.id),
        });
    }
    let more = if of > MOST_TOLD { ", …" } else { "" };
    let message = format!("{} of {of} could not be {what}", of as u64 - done);
    Err(Failure::new(Code::Missing, message).way_out(format!(
        "a claim ran out or is another's, or somebody ended them: {}{more}",
        now.join(", ")
    )))
}
