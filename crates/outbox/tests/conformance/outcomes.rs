//! What a handler's answer does: to its message, to its neighbours, to the partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, MessageResult, OutboxMessage,
    TransactionalMessageHandler,
};

use super::stage::{ONE, text_of};
use super::{Collector, Dialect, Stage};

const NO_DEAD_LETTERS: &str = "SELECT COUNT(*) FROM outbox_dead_letters";

pub(crate) async fn a_retry_comes_again_with_its_attempts_counted<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("stubborn", 0..3) => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let handle = stage.deliver(ONE, &collector).await;
    stage
        .enqueue(handle.outbox(), 0, &["a", "stubborn", "b", "c"])
        .await;
    collector.wait_for(7).await;
    handle.stop().await;
    let seen: Vec<_> = collector
        .seen()
        .iter()
        .map(|message| (text_of(message), message.attempts))
        .collect();
    let expected = [
        ("a", 0),
        ("stubborn", 0),
        ("stubborn", 1),
        ("stubborn", 2),
        ("stubborn", 3),
    ]
    .into_iter()
    .chain([("b", 0), ("c", 0)])
    .map(|(text, attempts)| (text.to_owned(), attempts));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    assert_eq!(stage.number(NO_DEAD_LETTERS).await, 0);
}

pub(crate) async fn a_rejected_message_is_dead_lettered_alone<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match &*text_of(message) {
        "poison" => MessageResult::Reject("it is poison".into()),
        _ => MessageResult::Ok,
    });
    let handle = stage.deliver(ONE, &collector).await;
    stage
        .enqueue(handle.outbox(), 0, &["a", "poison", "b", "poison", "c"])
        .await;
    collector.wait_for(5).await;
    let buried = "SELECT COUNT(*) FROM outbox_dead_letters WHERE last_error = 'it is poison' \
                  AND status = 'pending' AND attempts = 1 AND seq IN (2, 4)";
    stage.until(buried, 2).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["a", "poison", "b", "poison", "c"]);
    assert_eq!(stage.number(NO_DEAD_LETTERS).await, 2);
}

pub(crate) async fn the_last_attempt_ends_in_the_dead_letters<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match &*text_of(message) {
        "hopeless" => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let handle = stage
        .outbox()
        .queue("orders", ONE)
        .leased(collector.clone())
        .max_attempts(3)
        .start()
        .await
        .unwrap();
    stage
        .enqueue(handle.outbox(), 0, &["hopeless", "next"])
        .await;
    collector.wait_for(4).await;
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_dead_letters WHERE attempts = 3 AND seq = 1",
            1,
        )
        .await;
    handle.stop().await;
    assert_eq!(
        collector.texts(),
        ["hopeless", "hopeless", "hopeless", "next"]
    );
}

/// Acks all but the second message the first time, and twice what it acks.
struct Skips(Collector);

impl LeasedHandler for Skips {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while let Some(message) = batch.next_msg() {
            let first_time = !self.0.seen().iter().any(|seen| seen.seq == message.seq);
            let _ = self.0.see(message);
            if !(message.seq == 2 && first_time) {
                batch.ack(message);
                batch.ack(message);
            }
        }
        HandlerResult::Success
    }
}

pub(crate) async fn a_gap_in_the_acks_comes_again<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let skips = Skips(collector.clone());
    let handle = stage
        .outbox()
        .queue("orders", ONE)
        .batch_leased(skips)
        .start()
        .await
        .unwrap();
    stage
        .enqueue(handle.outbox(), 0, &["1", "2", "3", "4"])
        .await;
    collector.wait_for(7).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["1", "2", "3", "4", "2", "3", "4"]);
}

pub(crate) async fn a_panicking_handler_is_a_failed_attempt<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| {
        assert!(text_of(message) != "bomb" || message.attempts > 1, "boom");
        MessageResult::Ok
    });
    let handle = stage.deliver(ONE, &collector).await;
    stage.enqueue(handle.outbox(), 0, &["a", "bomb", "b"]).await;
    collector.wait_for(5).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["a", "bomb", "bomb", "bomb", "b"]);
}

/// Panics at a bomb when it is asked for its future, before that does anything.
struct Eager(Collector);

impl LeasedHandler for Eager {
    fn handle(&self, batch: &mut Batch<'_>) -> impl Future<Output = HandlerResult> + Send {
        let messages = batch.next_chunk(1);
        for message in messages {
            self.0.see(message);
            assert!(text_of(message) != "bomb", "boom");
        }
        batch.ack_chunk(messages);
        std::future::ready(HandlerResult::Success)
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Eager {
    fn handle(
        &self,
        _: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> impl Future<Output = MessageResult> + Send {
        let answer = self.0.see(message);
        assert!(text_of(message) != "bomb", "boom");
        std::future::ready(answer)
    }
}

pub(crate) async fn a_handler_that_panics_before_it_waits_is_a_failed_attempt<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let eager = || Eager(collector.clone());
    let queue = stage.outbox().queue("orders", ONE).batch_leased(eager());
    let queue = queue.max_attempts(2).queue("bills", ONE);
    let queue = queue.transactional(eager()).max_attempts(2);
    let handle = queue.start().await.unwrap();
    for queue in ["orders", "bills"] {
        for text in ["bomb", "next"] {
            let message = outbox::EnqueueMessage::to(0, text, "text/plain");
            let enqueue = async |connection: &mut DB::Connection| {
                handle.outbox().enqueue(connection, queue, message).await
            };
            handle.outbox().transaction(enqueue).await.unwrap();
        }
    }
    stage
        .until("SELECT MIN(processed_seq) FROM outbox_processors", 2)
        .await;
    let buried = stage.buried(handle.outbox()).await;
    handle.stop().await;
    let boom = || (0, 1, 2, "the handler panicked: boom".to_owned());
    assert_eq!(buried, [boom(), boom()]);
}

/// Goes off when it is dropped.
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0, "boom");
    }
}

/// Hangs at "slow", and goes off when it is stopped.
struct HangsArmed(Collector);

impl outbox::LeasedMessageHandler for HangsArmed {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        let answer = self.0.see(message);
        if text_of(message) == "slow" {
            let _armed = Bomb(true);
            std::future::pending::<()>().await;
        }
        answer
    }
}

pub(crate) async fn a_handler_that_panics_when_it_is_stopped_is_a_failed_attempt<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let queue = queue
        .leased(HangsArmed(collector.clone()))
        .lease(LeaseConfig {
            duration: Duration::from_millis(600),
            headroom: Duration::from_millis(200),
        });
    let handle = queue.max_attempts(2).start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["slow", "next"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 2)
        .await;
    let buried = stage.buried(handle.outbox()).await;
    handle.stop().await;
    assert_eq!(buried, [(0, 1, 2, "lease expired".to_owned())]);
}

/// Hangs at the first delivery of "slow".
struct Hangs(Collector);

impl outbox::LeasedMessageHandler for Hangs {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        let answer = self.0.see(message);
        if text_of(message) == "slow" && message.attempts == 0 {
            std::future::pending::<()>().await;
        }
        answer
    }
}

pub(crate) async fn a_handler_slower_than_its_lease_is_stopped<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let lease = LeaseConfig {
        duration: Duration::from_millis(1500),
        headroom: Duration::from_millis(1000),
    };
    let builder = stage
        .outbox()
        .queue("orders", ONE)
        .leased(Hangs(collector.clone()));
    let handle = builder.lease(lease).start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["a", "slow", "b"]).await;
    let delivered = collector.wait_for(4).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["a", "slow", "slow", "b"]);
    assert_eq!(
        delivered[2].attempts, 1,
        "the hard stop counts as a failed attempt"
    );
}

/// Writes an effect per message, then answers as its collector says; "sql" fails in SQL first.
pub(crate) struct Ledger(pub(crate) Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for Ledger {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!(
            "INSERT INTO effects VALUES ({}, '{}')",
            message.seq,
            text_of(message)
        );
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        let answer = self.0.see(message);
        if text_of(message) == "sql" && message.attempts == 0 {
            let broken = DB::run(connection, "SELECT * FROM no_such_table".to_owned()).await;
            assert!(broken.is_err());
            return MessageResult::Retry;
        }
        answer
    }
}

/// No message has two effects, and those that should have one do.
async fn one_effect_each<DB: Dialect>(stage: &Stage<DB>, messages: i64) {
    assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, messages);
    assert_eq!(
        stage
            .number("SELECT COUNT(DISTINCT seq) FROM effects")
            .await,
        messages
    );
}

pub(crate) async fn a_transactional_effect_happens_exactly_once<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.book(&collector).await;
    let texts: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    for chunk in texts.chunks(40) {
        let chunk: Vec<_> = chunk.iter().map(String::as_str).collect();
        stage.enqueue(handle.outbox(), 0, &chunk).await;
    }
    stage.until("SELECT COUNT(*) FROM effects", 200).await;
    handle.stop().await;
    one_effect_each(stage, 200).await;
    assert_eq!(collector.texts(), texts);
}

pub(crate) async fn a_transactional_retry_undoes_its_writes_alone<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("again", 0..2) => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let handle = stage.book(&collector).await;
    stage
        .enqueue(handle.outbox(), 0, &["a", "again", "b"])
        .await;
    stage.until("SELECT COUNT(*) FROM effects", 3).await;
    handle.stop().await;
    one_effect_each(stage, 3).await;
    assert_eq!(collector.texts(), ["a", "again", "again", "again", "b"]);
}

pub(crate) async fn a_transactional_reject_undoes_its_writes_alone<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match &*text_of(message) {
        "poison" => MessageResult::Reject("no".into()),
        _ => MessageResult::Ok,
    });
    let handle = stage.book(&collector).await;
    stage
        .enqueue(handle.outbox(), 0, &["a", "poison", "b"])
        .await;
    stage.until("SELECT COUNT(*) FROM effects", 2).await;
    handle.stop().await;
    one_effect_each(stage, 2).await;
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM effects WHERE note = 'poison'")
            .await,
        0
    );
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM outbox_dead_letters WHERE seq = 2")
            .await,
        1
    );
    assert_eq!(collector.texts(), ["a", "poison", "b"]);
}

pub(crate) async fn a_sql_error_in_a_handler_is_survived<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.book(&collector).await;
    stage.enqueue(handle.outbox(), 0, &["a", "sql", "b"]).await;
    stage.until("SELECT COUNT(*) FROM effects", 3).await;
    handle.stop().await;
    one_effect_each(stage, 3).await;
    assert_eq!(collector.texts(), ["a", "sql", "sql", "b"]);
}

pub(crate) async fn any_error_text_fits<DB: Dialect>(stage: &Stage<DB>) {
    let reasons = [
        "nul \0 byte".to_owned(),
        "🎉".repeat(1 << 20),
        String::new(),
    ];
    let count = reasons.len();
    let next = Arc::new(AtomicUsize::new(0));
    let collector = Collector::answering(move |_| {
        MessageResult::Reject(reasons[next.fetch_add(1, Ordering::SeqCst)].clone())
    });
    let handle = stage.deliver(ONE, &collector).await;
    stage.enqueue(handle.outbox(), 0, &["a", "b", "c"]).await;
    stage.until(NO_DEAD_LETTERS, count as i64).await;
    handle.stop().await;
    assert_eq!(collector.seen().len(), count);
}

pub(crate) async fn new_arrivals_do_not_cut_a_backoff_short<DB: Dialect>(stage: &Stage<DB>) {
    let backoff = Duration::from_millis(600);
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let clock = Arc::clone(&times);
    let collector = Collector::answering(move |message| {
        clock
            .lock()
            .expect("no panic inside")
            .push(tokio::time::Instant::now());
        if message.attempts == 0 && message.seq == 1 {
            MessageResult::Retry
        } else {
            MessageResult::Ok
        }
    });
    let tuning = outbox::WorkerTuning::processor_low_latency().retry_base(backoff);
    let builder = stage.outbox().processor_tuning(tuning).queue("orders", ONE);
    let handle = builder.leased(collector.clone()).start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["failing"]).await;
    collector.wait_for(1).await;
    for _ in 0..5 {
        stage.enqueue(handle.outbox(), 0, &["arrival"]).await;
    }
    collector.wait_for(7).await;
    handle.stop().await;
    let times = times.lock().expect("no panic inside").clone();
    assert!(
        times[1] - times[0] >= backoff,
        "tried again after {:?}",
        times[1] - times[0]
    );
}
