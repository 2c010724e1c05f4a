//! Where messages go: brokers and endpoints outside the database, at least once, in order within each
//! partition. One feature and one file or folder each.
//!
//! ```
//! # #[cfg(feature = "http")]
//! # async fn show(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
//! use outbox::{Outbox, Partitions};
//! use outbox_sinks::{HttpSink, SinkExt as _};
//!
//! let shipping = HttpSink::to("https://shipping.example/orders").build()?;
//! let handle = Outbox::builder(pool)
//!     .queue("orders", Partitions::of(8))
//!     .sink(shipping)
//!     .start()
//!     .await?;
//! # handle.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | always | [`LinesSink`]: JSON lines to a file or standard output |
//! | `http` | [`HttpSink`]: webhooks, as `CloudEvents`, signed if you like |
//! | `kafka` | [`KafkaSink`]: records by an idempotent producer (librdkafka, which is built from C) |
//! | `mqtt` | [`MqttSink`]: MQTT 5, quality of service 1 |
//! | `nats` | [`NatsSink`]: streams of NATS JetStream, which drop redeliveries themselves |
//! | `rabbitmq` | [`RabbitMqSink`]: publisher confirms, mandatory |
//! | `redis` | [`RedisSink`]: streams of Redis, trimmed if you like |
//!
//! # Headers
//!
//! What a message says of itself has the same names everywhere, those of `CloudEvents` 1.0 with `ce-` before
//! them: `ce-id` (the message's identity, by which a receiver tells redeliveries), `ce-type`, `ce-time`,
//! `ce-source`, `ce-sequence`, `ce-queue`, `ce-partition` and `ce-partitionkey` (its key). Its own headers go
//! along by their own names.

#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod connected;
#[cfg(any(feature = "broker", feature = "http"))]
mod envelope;
mod error;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod lines;
#[cfg(feature = "broker")]
mod link;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq"
))]
mod routes;
#[cfg(any(feature = "broker", feature = "http"))]
mod settings;
mod template;
#[cfg(any(feature = "nats", feature = "redis"))]
mod tls;

use std::future::Future;
use std::time::{Duration, Instant};

use outbox::{
    Backend, Batch, HandlerResult, LeasedHandler, OutboxBuilder, OutboxMessage, QueueBuilder,
};

pub use error::SinkError;
#[cfg(feature = "http")]
pub use http::{CloudEventMode, HttpSink, HttpSinkBuilder};
#[cfg(feature = "kafka")]
pub use kafka::{KafkaSink, KafkaSinkBuilder};
pub use lines::LinesSink;
#[cfg(feature = "mqtt")]
pub use mqtt::{MqttSink, MqttSinkBuilder};
#[cfg(feature = "nats")]
pub use nats::{NatsSink, NatsSinkBuilder};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMqSink, RabbitMqSinkBuilder};
#[cfg(feature = "redis")]
pub use redis::{RedisSink, RedisSinkBuilder};
pub use template::Template;

/// How long a broker or an endpoint may take to answer, unless a sink is told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// How many messages are on their way at once unless a sink says otherwise.
const WINDOW: usize = 100;

/// What is behind a lock is whole at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Somewhere messages can be published to.
pub trait Sink: Send + Sync + 'static {
    /// Publishes messages of one partition, in this order, and answers how many of the first ones are
    /// safe where they went. It stops at the first that is not: what comes after that one must not
    /// arrive before it.
    fn publish(&self, messages: &[OutboxMessage]) -> impl Future<Output = Published> + Send;

    /// How many messages it is given at once.
    fn window(&self) -> usize {
        WINDOW
    }

    /// Connects, publishes nothing, and says what is wrong: a password, a stream that is not there.
    fn check(&self) -> impl Future<Output = Result<(), String>> + Send {
        async { Ok(()) }
    }
}

/// What became of messages that were published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// How many of the first ones are safe.
    pub confirmed: usize,
    /// Why the next one is not; nothing if all are.
    pub refusal: Option<Refusal>,
}

impl Published {
    /// All of them are safe.
    pub fn all(messages: &[OutboxMessage]) -> Self {
        Self {
            confirmed: messages.len(),
            refusal: None,
        }
    }

    /// The first ones are safe, and the next one is not.
    pub fn until(confirmed: usize, refusal: Refusal) -> Self {
        Self {
            confirmed,
            refusal: Some(refusal),
        }
    }
}

/// Why a message was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It may work later.
    Later {
        /// Why, for the operator.
        reason: String,
        /// How long the other side asked for.
        after: Option<Duration>,
    },
    /// It never will: this message goes to the dead letters.
    Never {
        /// Why, for the operator.
        reason: String,
    },
}

impl Refusal {
    /// It may work later.
    pub fn later(reason: impl Into<String>) -> Self {
        Self::Later {
            reason: reason.into(),
            after: None,
        }
    }

    /// It never will.
    pub fn never(reason: impl Into<String>) -> Self {
        Self::Never {
            reason: reason.into(),
        }
    }
}

/// A queue whose messages go to a sink.
pub trait SinkExt<DB: Backend> {
    /// Delivers the messages of this queue to a sink. Give processors a batch size of the sink's window
    /// or more, or its window is never full.
    fn sink(self, sink: impl Sink) -> OutboxBuilder<DB>;
}

impl<DB: Backend> SinkExt<DB> for QueueBuilder<DB> {
    fn sink(self, sink: impl Sink) -> OutboxBuilder<DB> {
        self.batch_leased(Delivery(sink))
    }
}

/// Delivers batches to a sink, a window at a time.
#[derive(Debug)]
struct Delivery<S>(S);

impl<S: Sink> LeasedHandler for Delivery<S> {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        // What cannot be published in the time that is left comes with the next lease, and is not at fault.
        let mut longest = Duration::ZERO;
        while batch.remaining() > longest {
            let begun = Instant::now();
            let mut window = batch.next_chunk(self.0.window().max(1));
            if window.is_empty() {
                break;
            }
            while !window.is_empty() {
                let Published { confirmed, refusal } = self.0.publish(window).await;
                let (safe, rest) = window.split_at(confirmed.min(window.len()));
                batch.ack_chunk(safe);
                window = match (refusal, rest) {
                    (None, []) => rest,
                    (Some(Refusal::Never { reason }), [refused, rest @ ..]) => {
                        batch.reject(refused, reason);
                        rest
                    }
                    (Some(Refusal::Later { reason, after }), _) => {
                        // The framework's own backoff comes on top.
                        let after = after.unwrap_or_default().min(batch.remaining());
                        let _ = tokio::time::timeout(after, batch.stopping()).await;
                        return HandlerResult::Retry { reason };
                    }
                    (None | Some(Refusal::Never { .. }), _) => {
                        let reason = "the sink did not say what became of a message".to_owned();
                        return HandlerResult::Retry { reason };
                    }
                };
            }
            longest = longest.max(begun.elapsed() * 2);
        }
        HandlerResult::Success
    }
}
