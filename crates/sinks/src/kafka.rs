//! Kafka: an idempotent producer, with the message's key as the record's. The producer is in `producer`.

mod producer;

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::OutboxMessage;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::DeliveryFuture;

use crate::error::SinkError;
use crate::link::{Deadline, Lane, Unanswered};
use crate::settings::{has_limits, shows_only};
use crate::template::Template;
use crate::{Published, Refusal, Sink, WINDOW};
use producer::Producer;

const BROKER: &str = "Kafka";
/// What a topic's name may be as long as.
const MAX_TOPIC: usize = 249;
/// What a topic takes unless configured otherwise, with some room for what comes around a message.
const MAX_MESSAGE_BYTES: usize = 1_000_000;
/// What order and safety rest on. Nobody sets these but us.
const OURS: [&str; 13] = [
    "acks",
    "bootstrap.servers",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.broker.list",
    "request.required.acks",
    "transactional.id",
];

/// Partitioners that look at the key, which every record has, and be it empty.
const KEYED: [&str; 5] = [
    "consistent",
    "fnv1a",
    "fnv1a_random",
    "murmur2",
    "murmur2_random",
];

/// Publishes each message as a record, and waits until all replicas that are in sync have it.
///
/// The record's key is the message's key, and for messages without one `queue/partition`; so what an outbox
/// keeps in order goes to one partition of a topic, where Kafka keeps it in order. Its timestamp is when the
/// message was enqueued.
///
/// | what happens | what becomes of the message |
/// |---|---|
/// | acknowledged by all replicas in sync | delivered |
/// | larger than [`max_message_bytes`](KafkaSinkBuilder::max_message_bytes), or its topic has no valid name | dead letter |
/// | anything else: no such topic, no permission, too large for the topic, no broker | again, after a backoff |
pub struct KafkaSink {
    config: ClientConfig,
    topic: Template,
    lane: Lane<Producer>,
}

/// Configures a [`KafkaSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct KafkaSinkBuilder {
    servers: String,
    topic: String,
    window: usize,
    max_message_bytes: usize,
    timeout: Duration,
    settings: BTreeMap<String, String>,
}

shows_only! {
    KafkaSinkBuilder { servers, topic }
    KafkaSink { topic }
}
has_limits!(KafkaSinkBuilder, "the cluster");

impl KafkaSink {
    /// Begins the configuration of a sink that publishes to the cluster of these servers:
    /// `host:9092,other:9092`.
    pub fn to(servers: impl Into<String>) -> KafkaSinkBuilder {
        KafkaSinkBuilder {
            servers: servers.into(),
            topic: "{queue}".to_owned(),
            window: WINDOW,
            max_message_bytes: MAX_MESSAGE_BYTES,
            timeout: crate::TIMEOUT,
            settings: BTreeMap::new(),
        }
    }
}

impl KafkaSinkBuilder {
    /// The topic, which may be a [`Template`]. Default `{queue}`.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// The size above which a message is a dead letter. Default 1 000 000; the topic's `max.message.bytes`
    /// should be higher.
    pub fn max_message_bytes(mut self, max_message_bytes: usize) -> Self {
        self.max_message_bytes = max_message_bytes;
        self
    }

    /// A setting of librdkafka, such as `security.protocol` or `compression.type`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// The sink, or what is wrong with its configuration. It connects when there is something to publish.
    pub fn build(self) -> Result<KafkaSink, SinkError> {
        let invalid = SinkError::invalid;
        if self.servers.trim().is_empty() {
            return Err(invalid("servers", &self.servers, "host:port,host:port"));
        }
        let lane = Lane::new(self.window, self.timeout)?;
        if let Some(name) = self
            .settings
            .keys()
            .find(|name| OURS.contains(&name.as_str()))
        {
            let allowed = "a setting that order and safety do not rest on";
            return Err(invalid("set", name, allowed));
        }
        if let Some(partitioner) = self.settings.get("partitioner")
            && !KEYED.contains(&partitioner.as_str())
        {
            let allowed = "one that keeps a key's messages together, such as murmur2_random";
            return Err(invalid("partitioner", partitioner, allowed));
        }
        let mut config = ClientConfig::new();
        config
            .set("linger.ms", "1")
            // A cluster that comes back is found soon.
            .set("reconnect.backoff.max.ms", "1000")
            // As other languages' clients choose a partition for a key.
            .set("partitioner", "murmur2_random");
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &self.servers)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.max.bytes", self.max_message_bytes.to_string())
            // A message that is given up while those behind it are delivered leaves a gap, and fills it when
            // it comes again: too late. So none is given up by itself. A batch that a broker refuses stops
            // the producer, and time that runs out is ours (`publish`): then everything is given up at
            // once.
            .set("message.timeout.ms", "0")
            .set("enable.gapless.guarantee", "true");
        // librdkafka knows its settings only when it is given them.
        config.create_native_config().map_err(|error| {
            let problem = match &error {
                // Not if it names the value: that may be a password.
                KafkaError::ClientConfig(_, problem, name, value) if !problem.contains(value) => {
                    format!("{name}: {problem}")
                }
                KafkaError::ClientConfig(_, _, name, _) => name.clone(),
                error => error.to_string(),
            };
            let allowed = "a setting of librdkafka, with a value that it knows";
            invalid("set", &problem, allowed)
        })?;
        Ok(KafkaSink {
            config,
            topic: self.topic.parse::<Template>()?.checked(valid)?,
            lane,
        })
    }
}

impl Sink for KafkaSink {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        let deadline = Deadline::after(self.lane.timeout, BROKER);
        // Everything to send is known before the first is sent: nothing waits in between.
        let topics = messages.iter().map(|message| self.topic_of(message));
        let mut topics: Vec<_> = topics.collect();
        let producer = self.lane.get(async { Producer::new(&self.config) }).await;
        let producer = match producer {
            Ok(producer) => producer,
            Err(problem) => return Published::until(0, Refusal::later(problem)),
        };
        if let Err(problem) = producer.find(&mut topics, &deadline).await {
            return Published::until(0, Refusal::later(problem));
        }
        let (under_way, refused) = producer.send(messages.iter().zip(topics));
        let mut confirmed = 0;
        let unanswered = Unanswered::or(|| producer.give_up());
        let settled = settle(under_way, &mut confirmed);
        let settled = deadline.limit(settled).await;
        unanswered.answered();
        match settled.map_err(|problem| producer.explain(problem)) {
            Ok(Ok(())) => match refused {
                None => Published::all(messages),
                Some(Refusal::Later { reason, .. }) => {
                    Published::until(confirmed, Refusal::later(producer.explain(reason)))
                }
                Some(never) => Published::until(confirmed, never),
            },
            Ok(Err(problem)) | Err(problem) => {
                producer.give_up();
                Published::until(confirmed, Refusal::later(problem))
            }
        }
    }

    fn window(&self) -> usize {
        self.lane.window
    }

    async fn check(&self) -> Result<(), String> {
        let deadline = Deadline::after(self.lane.timeout, BROKER);
        let topic = self.topic.constant().map(str::to_owned);
        // One that is there may rest between two attempts to connect.
        let producer = Producer::new(&self.config)?;
        producer.look(topic, &deadline).await?
    }
}

impl KafkaSink {
    fn topic_of(&self, message: &OutboxMessage) -> Result<String, Refusal> {
        let topic = self.topic.fill(message).map_err(Refusal::never)?;
        valid(&topic).map_err(|problem| self.topic.refusal(problem))?;
        Ok(topic)
    }
}

/// Refuses what no topic can be called.
fn valid(topic: &str) -> Result<(), String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let named = (1..=MAX_TOPIC).contains(&topic.len()) && topic.bytes().all(known);
    if named && topic != "." && topic != ".." {
        return Ok(());
    }
    Err(format!(
        "the topic {topic:?} is none: a name has 1 to {MAX_TOPIC} letters, digits, dots, dashes and \
         underscores"
    ))
}

/// Waits for all of them, and counts those before the first that is not delivered.
async fn settle(under_way: Vec<DeliveryFuture>, confirmed: &mut usize) -> Result<(), String> {
    for delivery in under_way {
        match delivery.await {
            Ok(Ok(_)) => *confirmed += 1,
            Ok(Err((error, _))) => return Err(format!("{BROKER}: {}", said(&error))),
            Err(_) => return Err(format!("{BROKER}: the producer stopped")),
        }
    }
    Ok(())
}

/// An error without what the client puts around it.
fn said(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight) => {
            "given up with others that were not delivered".to_owned()
        }
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: KafkaSinkBuilder| builder.build().unwrap_err().to_string();
        let to = || KafkaSink::to("x:9092").set("sasl.password", "secret");
        assert!(refused(KafkaSink::to(" ")).contains("host:port"));
        assert!(refused(to().window(0)).contains("window"));
        assert!(refused(to().timeout(Duration::ZERO)).contains("timeout"));
        assert!(refused(to().topic("{id}")).contains("{id}"));
        assert!(refused(to().set("acks", "1")).contains("\"acks\""));
        for scatters in ["random", "consistent_random"] {
            let error = refused(to().set("partitioner", scatters));
            assert!(error.contains("murmur2_random"), "{scatters}: {error}");
        }
        for topic in ["shop/{queue}", "orders new", "", ".."] {
            let error = refused(to().topic(topic));
            assert!(error.contains("letters, digits"), "{topic}: {error}");
        }
        let unknown = refused(to().set("colour", "blue"));
        assert!(
            unknown.contains("colour") && !unknown.contains("secret"),
            "{unknown}"
        );
        let value = refused(to().set("linger.ms", "long"));
        assert!(
            value.contains("linger.ms") && !value.contains("secret"),
            "{value}"
        );
        let sink = to().build().unwrap();
        assert!(!format!("{sink:?}").contains("secret"));
    }
}
