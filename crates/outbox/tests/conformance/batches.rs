//! Batch handlers, and handlers that do what they should not.

use std::time::Duration;

use outbox::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, MessageResult, Outbox, OutboxMessage,
    TransactionalHandler, TransactionalMessageHandler,
};

use super::boundaries::{Mode, set};
use super::stage::{ONE, quick, text_of};
use super::{Collector, Dialect, Stage};

/// Writes an effect per message; rejects a batch with poison in it, as a whole.
struct AllOrNothing(Collector);

impl<DB: Dialect> TransactionalHandler<DB> for AllOrNothing {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        messages: &[OutboxMessage],
    ) -> HandlerResult {
        for message in messages {
            let note = text_of(message);
            let effect = format!("INSERT INTO effects VALUES ({}, '{note}')", message.seq);
            DB::run(connection, effect)
                .await
                .expect("insert the effect");
            let _ = self.0.see(message);
        }
        if messages.iter().any(|message| text_of(message) == "poison") {
            return HandlerResult::Reject {
                reason: "poison somewhere".into(),
            };
        }
        HandlerResult::Success
    }
}

pub(crate) async fn a_rejected_transactional_batch_is_undone_and_comes_one_at_a_time<
    DB: Dialect,
>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue
        .batch_transactional(AllOrNothing(collector.clone()))
        .start()
        .await
        .unwrap();
    stage
        .enqueue(handle.outbox(), 0, &["a", "b", "poison", "c", "d"])
        .await;
    stage.until("SELECT COUNT(*) FROM effects", 4).await;
    handle.stop().await;
    assert_eq!(
        stage
            .number("SELECT COUNT(DISTINCT seq) FROM effects")
            .await,
        4
    );
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM effects WHERE note = 'poison'")
            .await,
        0
    );
    let buried = "SELECT COUNT(*) FROM outbox_dead_letters";
    assert_eq!(
        stage.number(buried).await,
        1,
        "only the one that was alone in its batch"
    );
    assert_eq!(
        stage
            .number("SELECT MIN(seq) FROM outbox_dead_letters")
            .await,
        3
    );
}

/// Acks what is good up to the first poison, then rejects the batch.
struct StopsAtPoison(Collector);

impl LeasedHandler for StopsAtPoison {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        loop {
            let chunk = batch.next_chunk(1);
            let [message] = chunk else {
                return HandlerResult::Success;
            };
            let _ = self.0.see(message);
            if text_of(message) == "poison" {
                return HandlerResult::Reject {
                    reason: "poison".into(),
                };
            }
            batch.ack_chunk(chunk);
        }
    }
}

pub(crate) async fn a_rejected_leased_batch_keeps_its_acks<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue
        .batch_leased(StopsAtPoison(collector.clone()))
        .start()
        .await
        .unwrap();
    stage
        .enqueue(handle.outbox(), 0, &["a", "b", "poison", "c"])
        .await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 4)
        .await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["a", "b", "poison", "poison", "c"]);
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM outbox_dead_letters WHERE seq = 3")
            .await,
        1
    );
}

/// Ends its own transaction at the first attempt.
struct Meddler(Collector, &'static str);

impl<DB: Dialect> TransactionalMessageHandler<DB> for Meddler {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let answer = self.0.see(message);
        if text_of(message) == "meddle" && message.attempts == 0 {
            let _ = DB::run(connection, self.1.to_owned()).await;
        }
        answer
    }
}

pub(crate) async fn a_handler_that_ends_its_transaction_settles_nothing_and_runs_again<
    DB: Dialect,
>(
    stage: &Stage<DB>,
) {
    for (round, meddling) in (1..).zip(["COMMIT", "ROLLBACK"]) {
        let collector = Collector::new();
        let queue = stage.outbox().queue("orders", ONE);
        let meddler = Meddler(collector.clone(), meddling);
        let handle = queue.transactional(meddler).start().await.unwrap();
        stage.enqueue(handle.outbox(), 0, &["meddle", "next"]).await;
        stage
            .until("SELECT processed_seq FROM outbox_processors", 2 * round)
            .await;
        handle.stop().await;
        let seen: Vec<_> = collector
            .seen()
            .iter()
            .map(|message| (text_of(message), message.attempts))
            .collect();
        let expected = [("meddle", 0), ("meddle", 1), ("next", 0)];
        assert_eq!(
            seen,
            expected.map(|(text, attempts)| (text.to_owned(), attempts)),
            "{meddling}"
        );
    }
}

/// Hangs in its transaction at the first attempt.
struct Sleeper(Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for Sleeper {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, 'x')", message.seq);
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        let answer = self.0.see(message);
        if text_of(message) == "sleep" && message.attempts == 0 {
            std::future::pending::<()>().await;
        }
        answer
    }
}

pub(crate) async fn a_hanging_transaction_is_stopped_and_undone<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let lease = LeaseConfig {
        duration: Duration::from_millis(1500),
        headroom: Duration::from_millis(1000),
    };
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue
        .transactional(Sleeper(collector.clone()))
        .lease(lease)
        .start()
        .await
        .unwrap();
    stage.enqueue(handle.outbox(), 0, &["sleep", "next"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 2)
        .await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["sleep", "sleep", "next"]);
    assert_eq!(collector.seen()[1].attempts, 1);
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM effects").await,
        2,
        "one effect each"
    );
}

/// Handles whole batches, and panics when one has poison in it.
struct Allergic(Collector);

impl LeasedHandler for Allergic {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(batch.len());
        for message in messages {
            self.0.see(message);
        }
        let poisoned = messages.iter().any(|message| text_of(message) == "poison");
        assert!(!poisoned, "there is poison somewhere");
        batch.ack_chunk(messages);
        HandlerResult::Success
    }
}

pub(crate) async fn the_last_attempt_of_a_batchs_head_is_its_own<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    // Fewer attempts than it takes to shrink the batch: the head would be blamed for its neighbour.
    let queue = queue
        .batch_leased(Allergic(collector.clone()))
        .max_attempts(1);
    let handle = queue.start().await.unwrap();
    let texts = ["innocent", "poison", "innocent too"];
    stage.enqueue(handle.outbox(), 0, &texts).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 3)
        .await;
    handle.stop().await;
    let letters = "SELECT COUNT(*) FROM outbox_dead_letters";
    let poison = "SELECT COUNT(*) FROM outbox_dead_letters WHERE seq = 2";
    assert_eq!(
        (stage.number(letters).await, stage.number(poison).await),
        (1, 1)
    );
}

pub(crate) async fn a_take_over_from_a_batch_that_rests_buries_nobody<DB: Dialect>(
    stage: &Stage<DB>,
) {
    set(stage, Mode::Leased).await;
    let collector = Collector::new();
    let allergic = async || {
        let queue = quick(Outbox::builder(stage.pool.clone())).queue("orders", ONE);
        let queue = queue.batch_leased(Allergic(collector.clone()));
        queue.max_attempts(1).step_by_step().await.unwrap()
    };
    let mut dead = allergic().await;
    let texts = ["innocent", "poison"];
    stage.enqueue(dead.outbox(), 0, &texts).await;
    assert_eq!(dead.drain().await.unwrap().retried, 1);
    drop(dead);
    let mut heir = allergic().await;
    heir.advance(Duration::from_secs(3600)).await.unwrap();
    heir.drain().await.unwrap();
    heir.advance(Duration::from_secs(3600)).await.unwrap();
    heir.drain().await.unwrap();
    assert_eq!(
        collector.texts(),
        ["innocent", "poison", "innocent", "poison"]
    );
    let buried = stage.buried(heir.outbox()).await;
    let buried: Vec<_> = buried.iter().map(|letter| (letter.1, letter.2)).collect();
    assert_eq!(buried, [(2, 1)], "the poison, after its attempt");
    heir.stop().await.unwrap();
}
