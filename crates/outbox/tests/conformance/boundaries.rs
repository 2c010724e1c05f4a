//! A process that dies at every place where it can. Whatever comes next finds the database in a state
//! that the promises allow. Where that is, is the database's own: `tests/wire` for those with a server,
//! `tests/sqlite.rs` for the one without.
//!
//! The pipeline runs step by step, so that the places are the same each time: the n-th run dies at the
//! n-th place, until one comes to its end.

use outbox::testing::TestOutbox;
use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessage};
use sqlx::Pool;

use super::outcomes::Ledger;
use super::stage::{ONE, PATIENCE, quick, text_of};
use super::{Collector, Dialect, Stage};

/// More places to die at than any run has.
pub(crate) const MAX_PLACES: u64 = 200;
/// What a run enqueues: "poison" goes to the dead letters.
const TEXTS: [&str; 3] = ["first", "poison", "last"];

/// How messages are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Leased,
    Transactional,
}

/// Rejects poison.
pub(crate) fn answer(message: &OutboxMessage) -> MessageResult {
    if text_of(message).ends_with("poison") {
        MessageResult::Reject("poison".into())
    } else {
        MessageResult::Ok
    }
}

pub(crate) fn collector() -> Collector {
    Collector::answering(answer)
}

pub(crate) async fn kit<DB: Dialect>(
    pool: Pool<DB>,
    mode: Mode,
    collector: &Collector,
) -> Result<TestOutbox<DB>, OutboxError> {
    let queue = quick(Outbox::builder(pool)).queue("orders", ONE);
    let builder = match mode {
        Mode::Leased => queue.leased(collector.clone()),
        Mode::Transactional => queue.transactional(Ledger(collector.clone())),
    };
    builder.step_by_step().await
}

/// What is interrupted: orders are written with their messages, which are then delivered.
pub(crate) async fn run<DB: Dialect>(
    kit: &mut TestOutbox<DB>,
    name: &str,
) -> Result<(), OutboxError> {
    let outbox = kit.outbox().clone();
    let work = async |connection: &mut DB::Connection| {
        for text in TEXTS {
            let order = format!("INSERT INTO orders VALUES ('{name}-{text}')");
            DB::run(connection, order).await?;
        }
        let message = |text| EnqueueMessage::to(0, format!("{name}-{text}"), "text/plain");
        let messages = TEXTS.map(message);
        outbox.enqueue_batch(connection, "orders", &messages).await
    };
    outbox.transaction(work).await?;
    kit.drain().await?;
    Ok(())
}

/// The next process: takes over when the lease has run out, and leaves nothing undone.
pub(crate) async fn take_over<DB: Dialect>(stage: &Stage<DB>, mode: Mode, collector: &Collector) {
    let mut heir = kit(stage.pool.clone(), mode, collector).await.unwrap();
    heir.advance(std::time::Duration::from_secs(3600))
        .await
        .unwrap();
    // The server may need a moment to notice that a connection is gone and undo what it had begun.
    let drained = tokio::time::timeout(PATIENCE, async {
        while !heir.enqueued("orders").await.unwrap().is_empty() {
            heir.drain().await.unwrap();
        }
    });
    let in_time = drained.await.is_ok();
    if !in_time {
        heir.assert_nothing_enqueued("orders").await;
    }
    heir.stop().await.unwrap();
}

/// Every order that is there was delivered, in order; those that are not there were not; each effect
/// and each dead letter is there once.
pub(crate) async fn inspect<DB: Dialect>(stage: &Stage<DB>, mode: Mode, delivered: &[String]) {
    let orders = stage.number("SELECT COUNT(*) FROM orders").await;
    let poison = stage
        .number("SELECT COUNT(*) FROM orders WHERE name LIKE '%-poison'")
        .await;
    let mut firsts: Vec<&String> = Vec::new();
    for text in delivered {
        if !firsts.contains(&text) {
            firsts.push(text);
        }
    }
    assert_eq!(firsts.len() as i64, orders, "delivered: {delivered:?}");
    for run in firsts.chunks(TEXTS.len()) {
        let ends = run.iter().zip(TEXTS).all(|(text, end)| text.ends_with(end));
        assert!(ends, "out of order: {firsts:?}");
    }
    let buried = stage
        .number("SELECT COUNT(*) FROM outbox_dead_letters WHERE last_error = 'poison'")
        .await;
    let letters = stage
        .number("SELECT COUNT(*) FROM outbox_dead_letters")
        .await;
    assert_eq!((buried, letters), (poison, poison));
    if mode == Mode::Transactional {
        let effects = stage.number("SELECT COUNT(*) FROM effects").await;
        let distinct = stage
            .number("SELECT COUNT(DISTINCT note) FROM effects")
            .await;
        assert_eq!((effects, distinct), (orders - poison, orders - poison));
    }
}

/// The tables, and a clock that can be moved before anybody needs it.
pub(crate) async fn set<DB: Dialect>(stage: &Stage<DB>, mode: Mode) {
    stage.run("CREATE TABLE orders (name VARCHAR(100))").await;
    let producer = stage.outbox().queue("orders", ONE).produce_only();
    producer.start().await.unwrap().stop().await;
    take_over(stage, mode, &collector()).await;
}
