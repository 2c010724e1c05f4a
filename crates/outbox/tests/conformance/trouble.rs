//! Handlers that never come to a good end: they panic, hang, fail in SQL, retry and reject for ever.
//! What they cost themselves, and that they cost nobody else anything.

use std::future::pending;
use std::time::Duration;

use outbox::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, LeasedMessageHandler, MessageResult,
    OutboxBuilder, OutboxMessage, TransactionalMessageHandler,
};

use super::stage::{EIGHT, ONE, text_of};
use super::{Collector, Dialect, Stage};

/// A second for handlers, which hanging ones use up; the rest is long enough to settle on a busy machine.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_secs(6),
    headroom: Duration::from_secs(5),
};

/// Does what the message says, every time.
struct Obeys(Collector);

impl Obeys {
    async fn obey(&self, message: &OutboxMessage) -> MessageResult {
        let answer = self.0.see(message);
        match &*text_of(message) {
            "panic" => panic!("boom \0 boom"),
            "panic without words" => std::panic::panic_any(7),
            "hang" => pending().await,
            "retry" | "sql" => MessageResult::Retry,
            "reject" => MessageResult::Reject("never".into()),
            _ => answer,
        }
    }
}

impl LeasedMessageHandler for Obeys {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.obey(message).await
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Obeys {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!(
            "INSERT INTO effects VALUES ({}, '{}')",
            message.partition,
            text_of(message)
        );
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        if text_of(message) == "sql" {
            let broken = DB::run(connection, "SELECT * FROM no_such_table".to_owned()).await;
            assert!(broken.is_err());
        }
        self.obey(message).await
    }
}

/// What stands at the head of the first partitions; the last two are healthy.
const TROUBLE: [&str; 6] = [
    "panic",
    "panic without words",
    "hang",
    "sql",
    "retry",
    "reject",
];
const HEALTHY: [u32; 2] = [6, 7];

async fn trouble_stops_no_other<DB: Dialect>(
    stage: &Stage<DB>,
    collector: &Collector,
    builder: OutboxBuilder<DB>,
) {
    let handle = builder.lease(LEASE).start().await.unwrap();
    for (partition, trouble) in (0..).zip(TROUBLE) {
        let texts = [trouble, "behind"];
        stage.enqueue(handle.outbox(), partition, &texts).await;
    }
    // Each has done its worst at least once, all but the rejected will do it for ever.
    for trouble in TROUBLE {
        collector
            .wait_until(|seen| seen.iter().any(|message| text_of(message) == trouble))
            .await;
    }
    let texts: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    for text in &texts {
        for partition in HEALTHY {
            stage.enqueue(handle.outbox(), partition, &[text]).await;
        }
    }
    let healthy = |seen: &[OutboxMessage]| {
        seen.iter()
            .filter(|message| HEALTHY.contains(&message.partition))
            .count()
    };
    collector.wait_until(|seen| healthy(seen) == 100).await;
    let twice = |seen: &[OutboxMessage], trouble: &str| {
        seen.iter()
            .filter(|message| text_of(message) == trouble)
            .count()
            >= 2
    };
    collector
        .wait_until(|seen| TROUBLE[..5].iter().all(|trouble| twice(seen, trouble)))
        .await;
    handle.stop().await;
    for partition in HEALTHY {
        let mine = collector.seen().into_iter();
        let mine = mine.filter(|message| message.partition == partition);
        let mine: Vec<_> = mine
            .map(|message| (message.attempts, text_of(&message)))
            .collect();
        let expected: Vec<_> = texts.iter().map(|text| (0, text.clone())).collect();
        assert_eq!(mine, expected, "each once, in order, at the first attempt");
    }
    let passed = collector.seen().into_iter();
    let passed = passed.filter(|message| text_of(message) == "behind");
    let passed: Vec<_> = passed.map(|message| message.partition).collect();
    assert_eq!(passed, [5], "only what was rejected lets the next one pass");
}

pub(crate) async fn trouble_in_one_partition_stops_no_other<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", EIGHT);
    let builder = queue.leased(Obeys(collector.clone()));
    trouble_stops_no_other(stage, &collector, builder).await;
}

pub(crate) async fn trouble_in_one_transaction_stops_no_other<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", EIGHT);
    let builder = queue.transactional(Obeys(collector.clone()));
    trouble_stops_no_other(stage, &collector, builder).await;
    let left = "SELECT COUNT(*) FROM effects WHERE seq < 6";
    assert_eq!(
        stage.number(left).await,
        1,
        "only what was behind the rejected one has an effect"
    );
    assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, 101);
}

async fn poison_is_buried<DB: Dialect>(
    stage: &Stage<DB>,
    collector: &Collector,
    builder: OutboxBuilder<DB>,
) {
    let builder = builder.lease(LEASE).max_attempts(2);
    let handle = builder.start().await.unwrap();
    let outbox = handle.outbox();
    for (partition, trouble) in (0..).zip(TROUBLE) {
        // At the head, and behind one that is well.
        stage
            .enqueue(outbox, partition, &[trouble, "a", trouble, "b"])
            .await;
    }
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 4";
    stage.until(settled, 6).await;
    let buried = stage.buried(outbox).await;
    handle.stop().await;
    let expected = [
        (2, "the handler panicked: boom \u{fffd} boom"),
        (2, "the handler panicked: a value that is not text"),
        (2, "lease expired"),
        (2, "the handler asked for a retry"),
        (2, "the handler asked for a retry"),
        (1, "never"),
    ];
    let expected: Vec<_> = (0..)
        .zip(expected)
        .flat_map(|(partition, (attempts, reason))| {
            [1, 3].map(|seq| (partition, seq, attempts, reason.to_owned()))
        })
        .collect();
    assert_eq!(buried, expected);
    let well = |text: &str| {
        collector
            .texts()
            .iter()
            .filter(|seen| *seen == text)
            .count()
    };
    assert!(well("a") >= 6 && well("b") >= 6);
}

pub(crate) async fn poison_of_every_kind_is_buried_after_its_attempts<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", EIGHT);
    let builder = queue.leased(Obeys(collector.clone()));
    poison_is_buried(stage, &collector, builder).await;
    let well = |text: &str| {
        collector
            .texts()
            .iter()
            .filter(|seen| *seen == text)
            .count()
    };
    assert_eq!((well("a"), well("b")), (6, 6), "the neighbours come once");
}

pub(crate) async fn transactional_poison_is_buried_after_its_attempts<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", EIGHT);
    let builder = queue.transactional(Obeys(collector.clone()));
    poison_is_buried(stage, &collector, builder).await;
    let effects = "SELECT COUNT(*) FROM effects WHERE note IN ('a', 'b')";
    assert_eq!(
        stage.number(effects).await,
        12,
        "one effect for each neighbour"
    );
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM effects").await,
        12,
        "none of the poison's"
    );
}

/// Writes what is refused only at the commit.
struct FailsAtCommit(Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for FailsAtCommit {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        if text_of(message) == "orphan" {
            let orphan = format!("INSERT INTO children VALUES ({})", message.seq);
            DB::run(connection, orphan).await.expect("nobody looks yet");
        }
        let effect = format!("INSERT INTO effects VALUES ({}, 'x')", message.seq);
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        self.0.see(message)
    }
}

pub(crate) async fn what_the_commit_refuses_is_a_failed_attempt<DB: Dialect>(stage: &Stage<DB>) {
    if DB::CHECKED_AT_COMMIT.is_empty() {
        // Every statement of the handler has its answer at once: nothing is left to the commit.
        return;
    }
    for table in DB::CHECKED_AT_COMMIT {
        stage.run(*table).await;
    }
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let builder = queue.transactional(FailsAtCommit(collector.clone()));
    let handle = builder.max_attempts(2).start().await.unwrap();
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["a", "b", "orphan", "c"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 4)
        .await;
    let buried = stage.buried(outbox).await;
    handle.stop().await;
    let buried: Vec<_> = buried
        .iter()
        .map(|(_, seq, attempts, _)| (*seq, *attempts))
        .collect();
    assert_eq!(
        buried,
        [(3, 2)],
        "the one at fault, after its attempts, and no other"
    );
    assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, 3);
    assert_eq!(
        stage
            .number("SELECT COUNT(DISTINCT seq) FROM effects")
            .await,
        3
    );
}

/// Has its session ended by some messages, and says that all is well.
struct EndsItself(Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for EndsItself {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        if text_of(message) == "end"
            && let Some(end) = DB::ENDS_ITSELF
        {
            let _ = DB::run(connection, end.to_owned()).await;
        }
        self.0.see(message)
    }
}

pub(crate) async fn a_handler_whose_connection_is_gone_every_time_has_failed<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if DB::ENDS_ITSELF.is_none() {
        return;
    }
    let queue = stage.outbox().queue("orders", ONE);
    let queue = queue.transactional(EndsItself(Collector::new()));
    let handle = queue.max_attempts(2).start().await.unwrap();
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["a", "end", "b"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 3)
        .await;
    let buried = stage.buried(outbox).await;
    handle.stop().await;
    let buried: Vec<_> = buried.iter().map(|letter| (letter.1, letter.2)).collect();
    assert_eq!(buried, [(2, 2)], "the one at fault, after its attempts");
}

/// Asks for a retry with a reason that is hard to store, then accepts.
struct Explains(Collector);

impl LeasedHandler for Explains {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let Some(message) = batch.next_msg() else {
            return HandlerResult::Success;
        };
        let _ = self.0.see(message);
        let reason = match message.attempts {
            0 => "nul \0 byte".to_owned(),
            1 => "🎉".repeat(1 << 18),
            // One byte before the place where texts are cut: a character must not be cut in two.
            2 => format!("{}🎉", "x".repeat(8191)),
            3 => String::new(),
            _ => {
                batch.ack(message);
                return HandlerResult::Success;
            }
        };
        HandlerResult::Retry { reason }
    }
}

pub(crate) async fn any_reason_for_a_retry_fits<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let builder = queue.batch_leased(Explains(collector.clone()));
    let handle = builder.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["a"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 1)
        .await;
    handle.stop().await;
    let attempts: Vec<_> = collector
        .seen()
        .iter()
        .map(|message| message.attempts)
        .collect();
    assert_eq!(attempts, [0, 1, 2, 3, 4]);
}
