//! MQTT 5: quality of service 1, many under way, none overtaken. The connection is in `connection`.

mod connection;

use std::path::PathBuf;
use std::time::Duration;

use outbox::OutboxMessage;
use percent_encoding::percent_decode_str;
use rumqttc::v5::MqttOptions;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{PubAckReason, Publish, PublishProperties};
use tokio::sync::oneshot::Receiver;
use url::Url;

use crate::connected::{Connected, publishes_when_connected, whole};
use crate::envelope;
use crate::error::SinkError;
use crate::link::{Deadline, Lane, later};
use crate::settings::{has_limits, shows_only};
use crate::template::Template;
use crate::{Refusal, WINDOW};
use connection::{Connection, Trust};

const BROKER: &str = "MQTT broker";
/// The longest text that MQTT knows.
const MAX_TEXT: usize = 65_535;
/// The client looks whether the broker is still there this often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Publishes each message with quality of service 1, and waits until the broker has acknowledged it.
///
/// | the broker says | what becomes of the message |
/// |---|---|
/// | success | delivered |
/// | invalid topic, invalid payload; or larger than it takes | dead letter |
/// | no matching subscribers: it keeps the message for nobody | again, unless [`mandatory`](MqttSinkBuilder::mandatory) is false |
/// | anything else, or nothing: no permission, quota, no connection | again, after a backoff |
///
/// How safe an acknowledged message is is the broker's to say: one without persistent sessions, or with a limit
/// on what waits for a subscriber, drops messages by design.
pub struct MqttSink {
    options: MqttOptions,
    trust: Option<Trust>,
    topic: Template,
    mandatory: bool,
    lane: Lane<Connection>,
}

/// Configures an [`MqttSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct MqttSinkBuilder {
    url: String,
    topic: String,
    client_id: Option<String>,
    root_certificates: Option<PathBuf>,
    mandatory: bool,
    window: usize,
    timeout: Duration,
}

shows_only! {
    MqttSinkBuilder { topic }
    MqttSink { topic }
}
has_limits!(MqttSinkBuilder, "the broker");

impl MqttSink {
    /// Begins the configuration of a sink that publishes to the broker at this URL:
    /// `mqtt://user:password@host:1883`, or `mqtts://` for TLS.
    pub fn to(url: impl Into<String>) -> MqttSinkBuilder {
        MqttSinkBuilder {
            url: url.into(),
            topic: "{queue}".to_owned(),
            client_id: None,
            root_certificates: None,
            mandatory: true,
            window: WINDOW,
            timeout: crate::TIMEOUT,
        }
    }
}

impl MqttSinkBuilder {
    /// The topic, which may be a [`Template`]. Default `{queue}`.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Who connects, for brokers that decide by it. A broker knows one client of a name: another process needs
    /// another. Default one that the broker chooses.
    pub fn client_id(mut self, client_id: impl Into<String>) -> Self {
        self.client_id = Some(client_id.into());
        self
    }

    /// A file of root certificates to trust instead of the system's. It is read at every connection.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// Whether somebody must have subscribed to the topic. Default true; otherwise what nobody asked for is
    /// gone.
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// The sink, or what is wrong with its configuration. It connects when there is something to publish.
    pub fn build(self) -> Result<MqttSink, SinkError> {
        let invalid = SinkError::invalid;
        let lane = Lane::new(self.window, self.timeout)?;
        // Not the URL: it may hold a password.
        let allowed = "mqtt://host or mqtts://host, with user, password and port if needed";
        let url = Url::parse(whole(&self.url)?);
        let url = url.map_err(|error| invalid("url", &error.to_string(), allowed))?;
        let (port, trust) = match url.scheme() {
            "mqtt" => (1883, None),
            "mqtts" => (8883, Some(Trust::of(self.root_certificates))),
            scheme => return Err(invalid("url", scheme, allowed)),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| invalid("url", "without a host", allowed))?;
        let client_id = self.client_id.unwrap_or_default();
        let mut options = MqttOptions::new(client_id, host, url.port().unwrap_or(port));
        options
            .set_clean_start(true)
            .set_keep_alive(KEEP_ALIVE)
            .set_connection_timeout(self.timeout.as_secs().max(1));
        if !url.username().is_empty() {
            let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let password = decoded(url.password().unwrap_or_default());
            options.set_credentials(decoded(url.username()), password);
        }
        Ok(MqttSink {
            options,
            trust,
            topic: self.topic.parse::<Template>()?.checked(publishable)?,
            mandatory: self.mandatory,
            lane,
        })
    }
}

publishes_when_connected!(MqttSink);

impl Connected for MqttSink {
    const BROKER: &'static str = BROKER;
    type Connection = Connection;

    fn lane(&self) -> &Lane<Connection> {
        &self.lane
    }

    async fn open(&self, _: &Deadline) -> Result<Connection, String> {
        Connection::open(self.options.clone(), self.trust.as_ref()).await
    }

    async fn send(
        &self,
        connection: &Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut under_way = Vec::new();
        for message in messages {
            let publish = match self.prepare(connection, message) {
                Ok(publish) => publish,
                Err(refusal) => {
                    self.settle(connection, &mut under_way, confirmed).await?;
                    return Err(refusal);
                }
            };
            let topic = String::from_utf8_lossy(&publish.topic).into_owned();
            let proven = connection.topics.is_proven(&topic);
            under_way.push((topic.clone(), connection.send(publish)));
            if !proven {
                self.settle(connection, &mut under_way, confirmed).await?;
                connection.topics.prove(topic);
            }
        }
        self.settle(connection, &mut under_way, confirmed).await
    }

    fn give_up(connection: &Connection, is_silent: bool) {
        // What it refuses is no trouble of the others'.
        if is_silent {
            connection.cut();
        }
    }
}

impl MqttSink {
    /// Waits for all that are on their way.
    async fn settle(
        &self,
        connection: &Connection,
        under_way: &mut Vec<(String, Receiver<PubAckReason>)>,
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut answers = under_way.drain(..);
        while let Some((topic, answer)) = answers.next() {
            let reason = answer.await;
            let reason = reason.map_err(|_| later(BROKER, connection.end()))?;
            if let Some(refusal) = self.refusal(&topic, reason) {
                if answers.len() > 0 {
                    // What is behind it must not arrive before it.
                    connection.cut();
                }
                return Err(refusal);
            }
            *confirmed += 1;
        }
        Ok(())
    }

    /// What an answer means, if it is a refusal.
    fn refusal(&self, topic: &str, reason: PubAckReason) -> Option<Refusal> {
        let said = |what: &str| format!("{BROKER}: {what} for topic {topic:?} ({reason:?})");
        match reason {
            PubAckReason::Success => None,
            PubAckReason::NoMatchingSubscribers if !self.mandatory => None,
            PubAckReason::NoMatchingSubscribers => {
                let problem = said("nobody has subscribed, it would be lost");
                Some(Refusal::later(problem))
            }
            PubAckReason::TopicNameInvalid | PubAckReason::PayloadFormatInvalid => {
                Some(Refusal::never(said("refused")))
            }
            _ => Some(Refusal::later(said("refused"))),
        }
    }

    /// As it is sent, or what MQTT or this broker would never take.
    fn prepare(
        &self,
        connection: &Connection,
        message: &OutboxMessage,
    ) -> Result<Publish, Refusal> {
        let topic = self.topic.fill(message).map_err(Refusal::never)?;
        let usable = publishable(&topic);
        usable.map_err(|problem| self.topic.refusal(problem))?;
        let mut properties = PublishProperties::default();
        for (name, value) in envelope::headers(message) {
            let ours = name.starts_with(envelope::PREFIX);
            // In what the application says they are no more than spaces; in a key they make a difference.
            let value = if ours {
                value
            } else {
                value.replace(is_control, " ")
            };
            let value = text(&name, value)?;
            properties
                .user_properties
                .push((text("header", name)?, value));
        }
        let content_type = envelope::content_type(message).map(str::to_owned);
        properties.content_type = content_type
            .map(|value| text("content type", value))
            .transpose()?;
        let payload = message.payload.clone();
        let publish = Publish::new(topic, QoS::AtLeastOnce, payload, Some(properties));
        // With the packet's number, which it has not got yet.
        let (size, limit) = (publish.size() + 2, connection.max_packet_size);
        if size > limit {
            let problem = format!("it needs a packet of {size} bytes, the broker takes {limit}");
            return Err(Refusal::never(problem));
        }
        Ok(publish)
    }
}

/// Refuses a topic that cannot be published to.
fn publishable(topic: &str) -> Result<(), String> {
    if topic.is_empty() || topic.contains(['+', '#']) {
        return Err(format!(
            "the topic {topic:?} is none: it must not be empty or contain + or #"
        ));
    }
    allowed("topic", topic)
}

/// What brokers may hang up on.
fn is_control(character: char) -> bool {
    character.is_control()
}

/// A text as MQTT allows it.
fn text(what: &str, text: String) -> Result<String, Refusal> {
    match allowed(what, &text) {
        Ok(()) => Ok(text),
        Err(problem) => Err(Refusal::never(problem)),
    }
}

fn allowed(what: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_TEXT {
        let bytes = text.len();
        return Err(format!(
            "the {what} has {bytes} bytes, MQTT allows {MAX_TEXT}"
        ));
    }
    match text.contains(is_control) {
        true => Err(format!(
            "the {what} {text:?} contains control characters, MQTT allows none"
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: MqttSinkBuilder| builder.build().unwrap_err().to_string();
        let error = refused(MqttSink::to("mqtt://u:12#34@y"));
        assert!(error.contains("# as %23"), "{error}");
        for url in ["http://u:secret@x", "", "mqtt://", "u:secret@x"] {
            let error = refused(MqttSink::to(url));
            assert!(
                error.contains("mqtt://host or mqtts://host"),
                "{url}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(refused(MqttSink::to("mqtt://x").window(0)).contains("window"));
        assert!(refused(MqttSink::to("mqtt://x").timeout(Duration::ZERO)).contains("timeout"));
        assert!(refused(MqttSink::to("mqtt://x").topic("{id}")).contains("{id}"));
        for topic in ["orders/#", "+/{queue}", ""] {
            let error = refused(MqttSink::to("mqtt://x").topic(topic));
            assert!(error.contains("must not be empty"), "{topic}: {error}");
        }
        let sink = MqttSink::to("mqtts://u:secret@x").build().unwrap();
        assert!(!format!("{sink:?}").contains("secret"));
    }
}
