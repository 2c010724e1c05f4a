//! A partition: its head, what is in its way, and what can be done about it.

use askama::Template;
use axum::body::Bytes;
use axum::http::StatusCode;
use outbox::{OutboxMessageId, PartitionStats, ProcessStats};

use super::messages::Told;
use super::{Frame, Path, Refused, Shown, Visit, rendered};
use crate::words;

/// How many messages are shown behind the head.
const NEXT: u32 = 10;

struct AttemptRow {
    at: String,
    seq: i64,
    attempts: u32,
    error: String,
}

#[derive(Template)]
#[template(path = "partition.html")]
struct PartitionPage {
    frame: Frame,
    queue: String,
    partition: u32,
    pending: String,
    settled: String,
    oldest: String,
    paused: bool,
    failing: bool,
    attempts: u32,
    error: String,
    /// What is in the way, in a sentence.
    blocking: String,
    holder: String,
    host: String,
    lease: String,
    epoch: i64,
    dead_letters: u64,
    head: Option<Told>,
    next: Vec<Told>,
    history: Vec<AttemptRow>,
    since: String,
}

/// What keeps the head from being delivered.
fn blocking(one: &PartitionStats, processes: &[ProcessStats]) -> String {
    let handled = processes
        .iter()
        .any(|process| process.queues.contains(&one.queue));
    if one.paused {
        "Somebody paused it. Resume lets it go on.".to_owned()
    } else if one.attempts > 0 {
        format!(
            "Its first message has failed {}, and nothing behind it is delivered before it is. It is tried \
             again by itself; if it can never succeed, skip it.",
            words::plural(one.attempts, "time", "times")
        )
    } else if one.pending() == 0 && !one.unsequenced {
        "Nothing waits here.".to_owned()
    } else if !handled {
        "No process handles this queue. Start one.".to_owned()
    } else if one.holder.is_none() {
        "Nobody holds it yet: a process that handles the queue takes it within seconds.".to_owned()
    } else {
        "Nothing: messages are being delivered.".to_owned()
    }
}

pub(crate) async fn show(visit: Visit, Path((queue, partition)): Path<(String, u32)>) -> Shown {
    visit.queue(&queue)?;
    let (watch, latest) = (&visit.office.watch, visit.office.watch.latest());
    let one = latest.partition(&queue, partition).ok_or_else(|| {
        let count = latest.of_queue(&queue).count();
        let what = format!("{queue} has no partition {partition}: it has {count}, from 0 on");
        Refused::nothing(what)
    })?;
    // What it cannot get it does without.
    let source = visit.source();
    // What is behind the head is not looked at again and again.
    let most = if visit.again { 1 } else { 1 + NEXT };
    let peeked = source.peek(&queue, partition, None, most).await;
    let peeked = peeked.unwrap_or_default();
    let may_see = visit.may_see_payloads();
    let (head, next) = match peeked.split_first() {
        Some((head, next)) => (Some(head), next),
        None => (None, &[][..]),
    };
    let process = latest
        .processes
        .iter()
        .find(|process| Some(&process.incarnation) == one.holder.as_ref());
    let history = watch.attempts(&queue, partition).into_iter();
    let page = PartitionPage {
        frame: visit.frame("queues", format!("{queue}, partition {partition}")),
        pending: words::number(one.pending()),
        settled: words::number(one.processed_seq),
        oldest: one.head_created_at.map_or("–".to_owned(), words::ago),
        paused: one.paused,
        failing: one.attempts > 0,
        attempts: one.attempts,
        error: one.last_error.clone().unwrap_or_default(),
        blocking: blocking(one, &latest.processes),
        holder: one.holder.clone().unwrap_or_default(),
        host: process
            .map(|process| process.host.clone())
            .unwrap_or_default(),
        lease: one.lease_until.map(words::ago).unwrap_or_default(),
        epoch: one.epoch,
        dead_letters: one.dead_letters,
        head: head.map(|head| Told::whole(head, may_see, None)),
        next: next.iter().map(|one| Told::brief(one, may_see)).collect(),
        history: history
            .map(|attempt| AttemptRow {
                at: words::moment(attempt.at),
                seq: attempt.seq,
                attempts: attempt.attempts,
                error: attempt.error,
            })
            .collect(),
        since: watch.since().map(words::moment).unwrap_or_default(),
        queue,
        partition,
    };
    Ok(rendered(&page))
}

pub(crate) async fn skip(
    visit: Visit,
    Path((queue, partition)): Path<(String, u32)>,
    body: Bytes,
) -> Shown {
    let form = visit.form(&body)?;
    visit.queue(&queue)?;
    let reason = form.get("reason").ok_or_else(|| {
        let way_out = "It is kept with the dead letter, and in the audit log. Go back and say why.";
        Refused::new(StatusCode::BAD_REQUEST, "a skip needs a reason", way_out)
    })?;
    let message = form.number("message").map(OutboxMessageId);
    let message = message.ok_or_else(|| Refused::bad("the form does not say which message"))?;
    let place = format!("{queue}/{partition}");
    let target = format!("{place}, message {message}");
    visit.record("skip", &target, reason).await?;
    let reason = format!("skipped by {}: {reason}", visit.identity.name);
    let failed = failed(&visit, &queue, partition, message).await;
    let reason = match failed {
        Some(error) => format!("{reason} (it had failed: {error})"),
        None => reason,
    };
    let source = visit.source();
    let done = match source.skip(&queue, partition, message, &reason).await {
        Ok(true) => "skipped",
        Ok(false) => {
            let outcome = "it was not the first any more: nothing was done";
            visit.record_outcome(&target, outcome).await;
            "gone"
        }
        Err(error) => {
            visit
                .record_outcome(&target, &format!("failed: {error}"))
                .await;
            return Err(error.into());
        }
    };
    visit.look().await;
    Ok(visit.go(&format!("/queues/{place}?done={done}")))
}

/// Why this message has failed, if it is the first and what was last seen is of it.
async fn failed(
    visit: &Visit,
    queue: &str,
    partition: u32,
    message: OutboxMessageId,
) -> Option<String> {
    let head = visit.source().peek(queue, partition, None, 1).await.ok()?;
    let head = head.first().filter(|head| head.id == message)?;
    let latest = visit.office.watch.latest();
    let seen = latest.partition(queue, partition)?;
    let same = seen.processed_seq + 1 == head.seq;
    seen.last_error.clone().filter(|_| same)
}
