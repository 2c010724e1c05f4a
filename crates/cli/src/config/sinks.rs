//! What a route goes to: a table per kind, with the settings of its sink. The names are those of the
//! sink's builder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox::OutboxMessage;
use outbox_sinks::{
    CloudEventMode, HttpSink, LinesSink, MqttSink, NatsSink, Published, RabbitMqSink, RedisSink,
    Sink, SinkError, TIMEOUT,
};
use serde::Deserialize;

use super::values::{Checked, Text};

/// A table that describes a sink.
pub(super) trait Section {
    fn build(&self) -> Result<AnySink, SinkError>;

    /// How long a broker may take, if there is one.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// The file that its messages go to, if it is one.
    fn file(&self) -> Option<&str> {
        None
    }
}

/// The sinks there are, each shared by the queues of its route.
#[derive(Debug, Clone)]
pub(crate) enum AnySink {
    Lines(Arc<LinesSink>),
    Http(Arc<HttpSink>),
    Nats(Arc<NatsSink>),
    RabbitMq(Arc<RabbitMqSink>),
    #[cfg(feature = "kafka")]
    Kafka(Arc<outbox_sinks::KafkaSink>),
    Redis(Arc<RedisSink>),
    Mqtt(Arc<MqttSink>),
}

macro_rules! on_sink {
    ($any:expr, $sink:ident => $body:expr) => {
        match $any {
            Self::Lines($sink) => $body,
            Self::Http($sink) => $body,
            Self::Nats($sink) => $body,
            Self::RabbitMq($sink) => $body,
            #[cfg(feature = "kafka")]
            Self::Kafka($sink) => $body,
            Self::Redis($sink) => $body,
            Self::Mqtt($sink) => $body,
        }
    };
}

impl Sink for AnySink {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        on_sink!(self, sink => sink.publish(messages).await)
    }

    fn window(&self) -> usize {
        on_sink!(self, sink => sink.window())
    }

    async fn check(&self) -> Result<(), String> {
        on_sink!(self, sink => sink.check().await)
    }
}

/// How long a broker may take.
fn patience(timeout: Option<Checked<Duration>>) -> Duration {
    timeout.map_or(TIMEOUT, |Checked(timeout)| timeout)
}

/// Hands on what the file says, and leaves the rest at the builder's defaults.
macro_rules! with {
    ($builder:expr, $section:expr, $($setting:ident),*) => {{
        let mut builder = $builder;
        $(
            if let Some(value) = &$section.$setting {
                builder = builder.$setting(value.clone());
            }
        )*
        if let Some(Checked(timeout)) = $section.timeout {
            builder = builder.timeout(timeout);
        }
        builder
    }};
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stdout {}

impl Section for Stdout {
    fn build(&self) -> Result<AnySink, SinkError> {
        Ok(AnySink::Lines(LinesSink::stdout().into()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    path: Text,
}

impl Section for File {
    fn build(&self) -> Result<AnySink, SinkError> {
        let path = self.path.as_str();
        if path.is_empty() || path.contains('{') {
            return Err(SinkError::InvalidConfig {
                field: "path",
                value: path.to_owned(),
                allowed: "one file: it cannot be different for each message",
            });
        }
        Ok(AnySink::Lines(LinesSink::file(path).into()))
    }

    fn file(&self) -> Option<&str> {
        Some(self.path.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Http {
    url: Text,
    #[serde(default)]
    mode: Mode,
    source: Option<Text>,
    content_type: Option<Text>,
    #[serde(default)]
    headers: BTreeMap<String, Text>,
    signing_secret: Option<Text>,
    root_certificates: Option<Text>,
    timeout: Option<Checked<Duration>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    Binary,
    Structured,
    Plain,
}

impl Section for Http {
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = HttpSink::to(self.url.as_str());
        let mut sink =
            with!(sink, self, source, content_type, root_certificates).mode(match self.mode {
                Mode::Binary => CloudEventMode::Binary,
                Mode::Structured => CloudEventMode::Structured,
                Mode::Plain => CloudEventMode::Plain,
            });
        if let Some(secret) = &self.signing_secret {
            sink = sink.signed_with(secret.as_str());
        }
        for (name, value) in &self.headers {
            sink = sink.header(name, value.as_str());
        }
        Ok(AnySink::Http(sink.build()?.into()))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nats {
    url: Text,
    stream: Text,
    subject: Option<Text>,
    credentials: Option<Text>,
    root_certificates: Option<Text>,
    window: Option<usize>,
    timeout: Option<Checked<Duration>>,
}

impl Section for Nats {
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = NatsSink::to(self.url.as_str(), self.stream.as_str());
        let sink = with!(sink, self, subject, credentials, root_certificates, window);
        Ok(AnySink::Nats(sink.build()?.into()))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RabbitMq {
    url: Text,
    exchange: Option<Text>,
    routing_key: Option<Text>,
    mandatory: Option<bool>,
    root_certificates: Option<Text>,
    window: Option<usize>,
    max_message_bytes: Option<usize>,
    timeout: Option<Checked<Duration>>,
}

impl Section for RabbitMq {
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = RabbitMqSink::to(self.url.as_str());
        let sink = with!(
            sink,
            self,
            exchange,
            routing_key,
            mandatory,
            root_certificates,
            window,
            max_message_bytes
        );
        Ok(AnySink::RabbitMq(sink.build()?.into()))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kafka {
    servers: Text,
    topic: Option<Text>,
    window: Option<usize>,
    max_message_bytes: Option<usize>,
    timeout: Option<Checked<Duration>>,
    #[serde(default)]
    set: BTreeMap<String, Text>,
}

impl Section for Kafka {
    #[cfg(feature = "kafka")]
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = outbox_sinks::KafkaSink::to(self.servers.as_str());
        let mut sink = with!(sink, self, topic, window, max_message_bytes);
        for (name, value) in &self.set {
            sink = sink.set(name, value.as_str());
        }
        Ok(AnySink::Kafka(sink.build()?.into()))
    }

    #[cfg(not(feature = "kafka"))]
    fn build(&self) -> Result<AnySink, SinkError> {
        Err(SinkError::InvalidConfig {
            field: "kafka",
            value: "set".to_owned(),
            allowed: "left out: this command was built without `--features kafka`",
        })
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Redis {
    url: Text,
    stream: Option<Text>,
    max_length: Option<u64>,
    root_certificates: Option<Text>,
    window: Option<usize>,
    timeout: Option<Checked<Duration>>,
}

impl Section for Redis {
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = RedisSink::to(self.url.as_str());
        let sink = with!(sink, self, stream, max_length, root_certificates, window);
        Ok(AnySink::Redis(sink.build()?.into()))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mqtt {
    url: Text,
    topic: Option<Text>,
    client_id: Option<Text>,
    mandatory: Option<bool>,
    root_certificates: Option<Text>,
    window: Option<usize>,
    timeout: Option<Checked<Duration>>,
}

impl Section for Mqtt {
    fn build(&self) -> Result<AnySink, SinkError> {
        let sink = MqttSink::to(self.url.as_str());
        let sink = with!(
            sink,
            self,
            topic,
            client_id,
            mandatory,
            root_certificates,
            window
        );
        Ok(AnySink::Mqtt(sink.build()?.into()))
    }

    fn timeout(&self) -> Option<Duration> {
        Some(patience(self.timeout))
    }
}
