//! How fast a backlog goes through a sink, beside the bare client in the same run: at least [`SHARE`] of it. The two
//! take turns, and each turn is compared with the one beside it, so that a machine that slows down slows down both;
//! still nothing else should run meanwhile, which is why these are no tests of every change.
//!
//! ```console
//! $ cargo test --release -p outbox-sinks --all-features --test conformance throughput -- --ignored --test-threads 1
//! ```

mod bare;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox::{EnqueueMessage, Outbox, OutboxMessage, OutboxProfile, Partitions, WorkerTuning};
use outbox_sinks::{Published, Sink, SinkExt as _};
use testbed::announce;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::TIMEOUT;
use crate::brokers::{Broker, name};
use crate::source;

/// What a sink must reach of the bare client.
const SHARE: f64 = 0.6;
const ROUNDS: usize = 5;
/// How long a backlog may take before something is wrong, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(300);
const PARTITIONS: Partitions = Partitions::of(8);
const KEYS: usize = 64;
/// As much as in the other benchmarks.
const PAYLOAD: usize = 256;
/// What a sink has under way at once unless configured otherwise, and so has the bare client.
const WINDOW: usize = 100;

/// What a bare client publishes: the same as the sink does, but ready to be sent.
struct Letter {
    id: String,
    headers: Vec<(&'static str, String)>,
    payload: Vec<u8>,
}

fn letter(number: usize) -> Letter {
    let id = format!("outbox-{number}-1700000000000");
    let headers = vec![
        ("ce-specversion", "1.0".to_owned()),
        ("ce-id", id.clone()),
        ("ce-source", "/outbox/orders/0".to_owned()),
        ("ce-type", "order.placed".to_owned()),
        ("ce-time", "2026-01-01T00:00:00.000Z".to_owned()),
        ("ce-sequence", format!("{number:019}")),
        ("ce-queue", "orders".to_owned()),
        ("ce-partition", "0".to_owned()),
        ("ce-partitionkey", format!("key-{}", number % KEYS)),
    ];
    Letter {
        id,
        headers,
        payload: vec![b'x'; PAYLOAD],
    }
}

/// A broker with a client that publishes as the sink does, and does nothing else.
trait Bare: Broker {
    /// How many messages are enough to be measured.
    const ENOUGH: usize = 50_000;

    /// Publishes all, with a window under way, and waits until they are acknowledged.
    async fn publish_bare(&self, letters: &[Letter]);
}

/// A sink that costs nothing.
struct Nowhere;

impl Sink for Nowhere {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        Published::all(messages)
    }
}

/// A sink that says when so many messages are delivered.
struct Counted<S> {
    sink: S,
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

impl<S: Sink> Sink for Counted<S> {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        let published = self.sink.publish(messages).await;
        let before = self.left.fetch_sub(published.confirmed, Ordering::Relaxed);
        if before == published.confirmed {
            self.done.notify_one();
        }
        published
    }

    fn window(&self) -> usize {
        self.sink.window()
    }
}

/// From the start of the process to the last message's acknowledgement.
async fn drain(sink: impl Sink, count: usize) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let pool = source::pool(&folder).await;
    let backlog = Outbox::builder(pool.clone())
        .auto_migrate()
        .queue("orders", PARTITIONS)
        .produce_only()
        .without_workers()
        .start()
        .await
        .unwrap();
    let message = |number: usize| {
        let key = format!("key-{}", number % KEYS);
        EnqueueMessage::keyed(key, vec![b'x'; PAYLOAD], "order.placed")
    };
    let messages: Vec<_> = (0..count).map(message).collect();
    source::enqueue(&backlog, &messages).await;
    backlog.stop().await;
    let done = Arc::new(Notify::new());
    let sink = Counted {
        sink,
        left: Arc::new(AtomicUsize::new(count)),
        done: Arc::clone(&done),
    };
    let began = Instant::now();
    let relay = Outbox::builder(pool)
        .profile(OutboxProfile::high_throughput())
        .processor_tuning(WorkerTuning::processor_high_throughput().batch_size(1_000))
        .queue("orders", PARTITIONS)
        .sink(sink)
        .start()
        .await
        .unwrap();
    let drained = tokio::time::timeout(PATIENCE, done.notified()).await;
    drained.expect("the backlog goes through the sink");
    let took = began.elapsed();
    relay.stop().await;
    took
}

async fn bare<B: Bare>(broker: &B, numbers: Range<usize>) -> Duration {
    let letters: Vec<_> = numbers.map(letter).collect();
    let began = Instant::now();
    broker.publish_bare(&letters).await;
    began.elapsed()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn throughput<B: Bare>(broker: B) {
    let asked = std::env::var("OUTBOX_SINK_MESSAGES").ok();
    let count = asked.map_or(B::ENOUGH, |number| number.parse().unwrap());
    let rate = |took: Duration| count as f64 / took.as_secs_f64();
    let (mut clients, mut sources, mut outboxes) = (Vec::new(), Vec::new(), Vec::new());
    let mut shares = Vec::new();
    for round in 0..ROUNDS {
        let numbers = round * count..(round + 1) * count;
        sources.push(rate(drain(Nowhere, count).await));
        let client = rate(bare(&broker, numbers).await);
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let outbox = rate(drain(sink, count).await);
        clients.push(client);
        outboxes.push(outbox);
        shares.push(outbox / client);
    }
    let (client, source, outbox) = (median(clients), median(sources), median(outboxes));
    let (share, name) = (median(shares.clone()), name::<B>());
    announce(&format!(
        "{name:<9} bare client {client:>7.0}/s   SQLite alone {source:>7.0}/s   through the sink \
         {outbox:>7.0}/s   of the bare client {share:.2}",
    ));
    assert!(
        share >= SHARE,
        "{name} reaches {share:.2} of the bare client, not {SHARE}: {shares:.2?}"
    );
}

macro_rules! measure {
    ($feature:literal, $test:ident, $broker:ident) => {
        #[cfg(feature = $feature)]
        measure!($test, $broker);
    };
    ($test:ident, $broker:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "a benchmark, which needs a machine that does nothing else"]
        async fn $test() {
            if let Some(broker) = crate::brokers::$broker::start().await {
                throughput(broker).await;
            }
        }
    };
}

measure!(lines, Lines);
measure!("http", http, Http);
measure!("kafka", kafka, Kafka);
measure!("mqtt", mqtt, Mqtt);
measure!("nats", nats, Nats);
measure!("rabbitmq", rabbitmq, RabbitMq);
measure!("redis", redis, Redis);
