//! What each kind of account has to do, all of it once, and what went wrong first.

use std::error::Error;
use std::time::Duration;

use outbox::{DeadLetterFilter, EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessage};
use sqlx::Pool;

use super::super::conformance::any_language::{Call, Routine};
use super::super::conformance::stage::{ONE, quick};
use super::super::conformance::{Dialect, Stage};
use super::schema;

pub(crate) type Done = Result<(), Box<dyn Error + Send + Sync>>;

const MINUTE: Duration = Duration::from_secs(60);

async fn handle(message: OutboxMessage) -> MessageResult {
    match &*message.payload_type {
        "refused" => MessageResult::Reject("no".to_owned()),
        _ => MessageResult::Ok,
    }
}

/// What should have happened, as an error if it did not.
fn expect(happened: bool, what: &str) -> Done {
    match happened {
        true => Ok(()),
        false => Err(format!("not so: {what}").into()),
    }
}

async fn enqueue<DB: Dialect>(
    outbox: &Outbox<DB>,
    queue: &str,
    payload_types: &[&str],
) -> Result<(), OutboxError> {
    let message = |payload_type: &&str| EnqueueMessage::to(0, "body", *payload_type);
    let messages: Vec<_> = payload_types.iter().map(message).collect();
    let write = async |connection: &mut DB::Connection| {
        outbox.enqueue_batch(connection, queue, &messages).await
    };
    outbox.transaction(write).await.map(drop)
}

/// A producer with the library, and producers without, in a queue that there is.
pub(crate) async fn produce<DB: Routine>(pool: &Pool<DB>, by_hand: &str) -> Done {
    let outbox = Outbox::builder(pool.clone()).without_workers();
    let producer = outbox.queue("orders", ONE).produce_only().start().await?;
    enqueue(producer.outbox(), "orders", &["one"]).await?;
    enqueue(producer.outbox(), "orders", &["two", "three"]).await?;
    producer.stop().await;
    let mut connection = pool.acquire().await?;
    DB::call(&mut connection, &Call::new("k", "bytes")).await?;
    DB::run(&mut connection, by_hand.to_owned()).await?;
    Ok(())
}

/// Everything that workers do to messages, and everything that an operator does, in a queue that nobody knows yet.
pub(crate) async fn work<DB: Dialect>(pool: &Pool<DB>, queue: &str) -> Done {
    let builder = Outbox::builder(pool.clone()).queue(queue, ONE);
    let mut workers = builder.leased(handle).step_by_step().await?;
    let outbox = workers.outbox().clone();
    enqueue(&outbox, queue, &["fine", "refused"]).await?;
    let drained = workers.drain().await?;
    expect(
        (drained.settled, drained.dead_lettered) == (2, 1),
        "both are settled, and one is buried",
    )?;

    let all = DeadLetterFilter::new().queue(queue);
    let letters = outbox.dead_letter_list(&all).await?;
    let letter = letters.first().ok_or("nothing was buried")?;
    outbox.dead_letter_requeue(letter.id).await?;
    workers.drain().await?;
    let claimed = outbox.dead_letter_replay(&all, MINUTE).await?;
    let rejected = outbox.dead_letter_reject(&claimed, "still").await?;
    expect(rejected == 1, "it is rejected")?;
    let claimed = outbox.dead_letter_replay(&all, MINUTE).await?;
    expect(
        outbox.dead_letter_resolve(&claimed).await? == 1,
        "it is resolved",
    )?;
    expect(
        outbox.dead_letter_cleanup(&all).await? == 2,
        "both are removed",
    )?;

    outbox.pause(queue, None).await?;
    outbox.pause(queue, Some(0)).await?;
    enqueue(&outbox, queue, &["skipped"]).await?;
    let drained = workers.drain().await?;
    expect((drained.sequenced, drained.settled) == (1, 0), "it waits")?;
    expect(
        outbox.peek(queue, 0, None, 10).await?.len() == 1,
        "it is seen",
    )?;
    let skipped = outbox.skip(queue, 0, "no").await?;
    expect(skipped.is_some(), "it is skipped")?;
    outbox.resume(queue, Some(0)).await?;
    outbox.resume(queue, None).await?;

    outbox.stats().await?;
    outbox.health().await?;
    outbox.storage().await?;
    outbox.processes().await?;
    outbox.audit("somebody", "skip", queue, "no").await?;
    outbox.audit_log(None, 1).await?;
    workers.stop().await?;
    Ok(())
}

/// A process is there, and gone when it has stopped.
pub(crate) async fn take_part<DB: Dialect>(
    stage: &Stage<DB>,
    pool: &Pool<DB>,
    patience: Duration,
) -> Done {
    stage.run("DELETE FROM outbox_processes").await;
    let there = "SELECT COUNT(*) FROM outbox_processes";
    let builder = quick(Outbox::builder(pool.clone())).queue("orders", ONE);
    let process = builder.leased(handle).start().await?;
    let announced = tokio::time::timeout(patience, async {
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while stage.number(there).await == 0 {
            looks.tick().await;
        }
    });
    let announced = announced.await.is_ok();
    process.stop().await;
    expect(announced, "the process is announced")?;
    expect(stage.number(there).await == 0, "the process has departed")
}

/// Makes everything, finds it made, makes peace with a restored dump, and removes it.
pub(crate) async fn migrate<DB: Dialect>(pool: &Pool<DB>) -> Done {
    schema(pool).up().await?;
    schema(pool).up().await?;
    let owner = Outbox::builder(pool.clone())
        .without_workers()
        .every_queue();
    let owner = owner.start().await?;
    let repaired = owner.outbox().repair().await;
    owner.stop().await;
    repaired?;
    schema(pool).down().await?;
    Ok(())
}
