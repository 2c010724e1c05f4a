//! What the tests ask of whatever a sink publishes to, and those that there are.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod lines;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;

use std::future::Future;
#[cfg(feature = "broker")]
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

#[cfg(feature = "broker")]
use outbox::OutboxMessage;
use outbox_sinks::Sink;
#[cfg(any(feature = "broker", feature = "http"))]
use outbox_sinks::{Published, Refusal};

#[cfg(feature = "http")]
pub(crate) use http::Http;
#[cfg(feature = "kafka")]
pub(crate) use kafka::Kafka;
pub(crate) use lines::Lines;
#[cfg(feature = "mqtt")]
pub(crate) use mqtt::Mqtt;
#[cfg(feature = "nats")]
pub(crate) use nats::Nats;
#[cfg(feature = "rabbitmq")]
pub(crate) use rabbitmq::RabbitMq;
#[cfg(feature = "redis")]
pub(crate) use redis::Redis;

/// A message as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) payload: Vec<u8>,
    /// The header `colour`.
    pub(crate) colour: Option<String>,
}

impl Arrived {
    /// What headers say of it.
    pub(crate) fn with(header: impl Fn(&str) -> Option<String>, payload: &[u8]) -> Self {
        assert!(header("ce-id").is_some(), "it has an identity");
        Self {
            key: header("ce-partitionkey").unwrap(),
            seq: header("ce-sequence").unwrap().parse().unwrap(),
            payload: payload.to_vec(),
            colour: header("colour"),
        }
    }
}

/// What people call a broker.
pub(crate) fn name<B: Broker>() -> &'static str {
    let path = std::any::type_name::<B>();
    path.rsplit(':').next().unwrap_or(path)
}

/// Whatever a sink publishes to.
pub(crate) trait Broker: Sized + Send + Sync {
    type Sink: Sink;
    /// How many messages it keeps.
    const MOST: u32 = u32::MAX;

    /// Starts it; none where it takes no part, which is said.
    fn start() -> impl Future<Output = Option<Self>> + Send;

    /// Where it is.
    fn url(&self) -> String;

    /// A sink that finds it there, which may be the other end of a wire.
    fn sink_at(&self, url: &str, timeout: Duration) -> Self::Sink;

    /// Everything that arrived, in that order.
    fn arrived(&self) -> impl Future<Output = Vec<Arrived>> + Send;

    /// How many that are.
    fn count(&self) -> impl Future<Output = usize> + Send {
        async { self.arrived().await.len() }
    }

    /// Stops it dead; what arrived stays.
    fn stop(&mut self) -> impl Future<Output = ()> + Send;

    fn start_again(&mut self) -> impl Future<Output = ()> + Send;
}

/// Another message, with this key.
#[cfg(feature = "broker")]
pub(crate) fn keyed(key: &str) -> OutboxMessage {
    static ID: AtomicI64 = AtomicI64::new(1);
    let mut message = crate::message();
    message.id.0 += ID.fetch_add(1, Ordering::Relaxed);
    message.key = Some(key.to_owned());
    message
}

/// Why a message was not published.
#[cfg(any(feature = "broker", feature = "http"))]
pub(crate) fn reason(published: Published) -> String {
    match published.refusal {
        Some(Refusal::Later { reason, .. } | Refusal::Never { reason }) => reason,
        None => panic!("{published:?}"),
    }
}

/// Puts a certificate of this machine and its key into a folder: `certificate.pem` and `key.pem`.
#[cfg(any(
    feature = "http",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub(crate) fn certify(folder: &std::path::Path) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.join("certificate.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}
