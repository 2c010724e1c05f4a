//! What every sink must do, with a real outbox on one side and the real thing on the other.
#![cfg(feature = "http")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod brokers;

use std::collections::HashMap;
use std::time::Duration;

use brokers::{Answer, Arrived, Broker, Http, Lines};
use outbox::{
    DeadLetterFilter, EnqueueMessage, Outbox, OutboxHandle, OutboxProfile, Partitions, WorkerTuning,
};
use outbox_sinks::{HttpSink, LinesSink, Sink, SinkExt as _};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Sqlite, SqlitePool};
use tempfile::TempDir;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! on_every_broker {
    ($($test:ident),* $(,)?) => {
        on_every_broker!(@on lines, Lines, $($test)*);
        on_every_broker!(@on http, Http, $($test)*);
    };
    (@on $module:ident, $broker:ident, $($test:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<super::$broker>().await;
                }
            )*
        }
    };
}

on_every_broker!(
    messages_arrive_in_order_with_all_that_they_have,
    a_broker_that_goes_away_loses_nothing_and_keeps_the_order,
);

/// An outbox of its own.
struct Source {
    _folder: TempDir,
    handle: OutboxHandle<Sqlite>,
}

impl Source {
    async fn to(sink: impl Sink) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("outbox.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let processor = WorkerTuning::processor_low_latency()
            .batch_size(100)
            .retry_base(Duration::from_millis(20))
            .retry_max(Duration::from_millis(200));
        let handle = Outbox::builder(pool)
            .auto_migrate()
            .profile(OutboxProfile::low_latency())
            .processor_tuning(processor)
            .queue("orders", Partitions::of(4))
            .sink(sink)
            .start()
            .await
            .unwrap();
        Self {
            _folder: folder,
            handle,
        }
    }

    async fn enqueue(&self, messages: &[EnqueueMessage]) {
        let outbox = self.handle.outbox();
        outbox
            .transaction(async |connection: &mut sqlx::SqliteConnection| {
                outbox.enqueue_batch(connection, "orders", messages).await
            })
            .await
            .unwrap();
    }

    /// Waits until so many are settled.
    async fn settled(&self, count: i64) {
        let until = Instant::now() + PATIENCE;
        loop {
            let stats = self.handle.outbox().stats().await.unwrap();
            let settled: i64 = stats.iter().map(|one| one.processed_seq).sum();
            if settled == count {
                return;
            }
            assert!(
                Instant::now() < until,
                "{settled} of {count} settled: {stats:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Messages of eight keys, numbered.
fn numbered(numbers: std::ops::Range<u32>) -> Vec<EnqueueMessage> {
    numbers
        .map(|number| {
            let key = format!("key-{}", number % 8);
            EnqueueMessage::keyed(key, number.to_string(), "order.placed")
        })
        .collect()
}

/// The first arrival of each, by key.
fn by_key(arrived: &[Arrived]) -> HashMap<&str, Vec<u32>> {
    let mut keys: HashMap<&str, Vec<u32>> = HashMap::new();
    for one in arrived {
        let number = std::str::from_utf8(&one.payload).unwrap().parse().unwrap();
        let numbers = keys.entry(&one.key).or_default();
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    keys
}

fn assert_complete_and_in_order(arrived: &[Arrived], count: u32) {
    let keys = by_key(arrived);
    let all: usize = keys.values().map(Vec::len).sum();
    assert_eq!(all, count as usize, "none is lost, none invented");
    for (key, numbers) in keys {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

async fn messages_arrive_in_order_with_all_that_they_have<B: Broker>() {
    let broker = B::start().await;
    let source = Source::to(broker.sink()).await;
    let blue =
        EnqueueMessage::keyed("k", "{\"a\": \"ž\"}", "order.placed").header("colour", "blue");
    source.enqueue(&[blue]).await;
    source.settled(1).await;
    let expected = Arrived {
        key: "k".to_owned(),
        seq: 1,
        payload: "{\"a\": \"ž\"}".into(),
        colour: Some("blue".to_owned()),
    };
    assert_eq!(broker.arrived(), [expected]);
    source.enqueue(&numbered(0..1_000)).await;
    source.settled(1_001).await;
    let arrived = &broker.arrived()[1..];
    assert_eq!(arrived.len(), 1_000, "none twice when nothing fails");
    assert_complete_and_in_order(arrived, 1_000);
    source.handle.stop().await;
}

async fn a_broker_that_goes_away_loses_nothing_and_keeps_the_order<B: Broker>() {
    let mut broker = B::start().await;
    let source = Source::to(broker.sink()).await;
    let mut enqueued = 0;
    for _ in 0..3 {
        source.enqueue(&numbered(enqueued..enqueued + 300)).await;
        while broker.arrived().len() < enqueued as usize + 50 {
            tokio::task::yield_now().await;
        }
        broker.stop().await;
        source
            .enqueue(&numbered(enqueued + 300..enqueued + 310))
            .await;
        enqueued += 310;
        broker.start_again().await;
    }
    source.settled(930).await;
    assert_complete_and_in_order(&broker.arrived(), 930);
    source.handle.stop().await;
}

#[test]
fn half_a_line_spoils_no_other_and_a_file_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("messages.jsonl");
    std::fs::write(&path, "{\"id\": \"1\"}\n{\"id\": ").unwrap();
    let first = LinesSink::file(&path).unwrap();
    let lines = std::fs::read_to_string(&path).unwrap();
    assert_eq!(lines, "{\"id\": \"1\"}\n{\"id\": \n");
    let second = LinesSink::file(&path).unwrap_err().to_string();
    assert!(second.contains("messages.jsonl"), "{second}");
    drop(first);
    LinesSink::file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_decides_what_becomes_of_a_message() {
    use Answer::{Lost, Status};
    let broker = Http::start().await;
    broker.answer("1", &[Status(500), Status(404), Status(429)]);
    broker.answer("2", &[Status(422)]);
    broker.answer("3", &[Lost]);
    let source = Source::to(broker.sink()).await;
    let message = |text: &str| EnqueueMessage::keyed("k", text, "t");
    let messages = ["0", "1", "2", "3", "4"].map(message);
    source.enqueue(&messages).await;
    source.settled(5).await;
    let arrived = broker.arrived();
    let payloads: Vec<_> = arrived.iter().map(|one| &*one.payload).collect();
    // What was taken, and whose answer was lost, comes again.
    assert_eq!(payloads, [b"0", b"1", b"3", b"3", b"4"]);
    let all = DeadLetterFilter::new();
    let buried = source.handle.outbox().dead_letter_list(&all).await.unwrap();
    assert_eq!(buried.len(), 1);
    assert_eq!(buried[0].payload, b"2");
    assert_eq!(
        buried[0].last_error,
        "the endpoint answered 422 Unprocessable Entity"
    );
    source.handle.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_carry_what_receivers_ask_for() {
    let broker = Http::start().await;
    let sink = HttpSink::to(broker.url())
        .header("Authorization", "Bearer secret")
        .signed_with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .build()
        .unwrap();
    let source = Source::to(sink).await;
    let message = EnqueueMessage::keyed("k", "{}", "order.placed")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .header("authorization", "of the message")
        .header("content-type", "application/vnd.order+json");
    source.enqueue(&[message]).await;
    source.settled(1).await;
    let headers = broker.headers().remove(0);
    let id = headers["idempotency-key"].to_str().unwrap();
    assert_eq!(headers["ce-id"], id);
    assert_eq!(headers["webhook-id"], id);
    assert!(
        headers["webhook-signature"]
            .to_str()
            .unwrap()
            .starts_with("v1,")
    );
    assert_eq!(headers["authorization"], "Bearer secret");
    assert_eq!(headers["content-type"], "application/vnd.order+json");
    assert!(headers.contains_key("traceparent"));
    source.handle.stop().await;
}
