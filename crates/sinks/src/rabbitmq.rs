//! RabbitMQ: publisher confirms, many under way, none overtaken. The connection is in `connection`.

mod connection;

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::{MaybeDone, maybe_done};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{FieldTable, LongString, ShortString};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, ExchangeKind};
use outbox::OutboxMessage;

use crate::connected::{Connected, publishes_when_connected, whole};
use crate::envelope;
use crate::error::SinkError;
use crate::link::{Deadline, Lane, later};
use crate::settings::{has_limits, shows_only};
use crate::template::Template;
use crate::{Refusal, WINDOW};
use connection::Connection;

const BROKER: &str = "RabbitMQ";
/// A message on disk, in queues that are there.
const PERSISTENT: u8 = 2;
/// What RabbitMQ 4 takes unless configured otherwise.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// What a message's properties besides its headers take in a frame, at most.
const OTHER_PROPERTIES: usize = 1024;
/// Headers that tell RabbitMQ to send a message elsewhere as well.
const RESERVED: [&str; 2] = ["cc", "bcc"];

/// Publishes each message to an exchange, and waits until the broker has confirmed it.
///
/// Messages are persistent and mandatory: what no queue takes is not delivered, and comes again. The
/// `message-id` is the message's identity; `type` and `timestamp` are set as well.
///
/// | the broker says | what becomes of the message |
/// |---|---|
/// | `basic.ack` | delivered |
/// | `406 PRECONDITION_FAILED` for this very message, such as too large | dead letter |
/// | anything else, or nothing: returned, `basic.nack`, no such exchange, no connection | again, after a backoff |
///
/// A queue that is full and rejects what is published (`overflow: reject-publish`) may reject one message and
/// take the next. Where that can be, [`window(1)`](RabbitMqSinkBuilder::window) keeps the order.
pub struct RabbitMqSink {
    uri: AMQPUri,
    root_certificates: Option<PathBuf>,
    exchange: ShortString,
    routing_key: Template,
    mandatory: bool,
    max_message_bytes: usize,
    lane: Lane<Connection>,
}

/// Configures a [`RabbitMqSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct RabbitMqSinkBuilder {
    url: String,
    root_certificates: Option<PathBuf>,
    exchange: String,
    routing_key: String,
    mandatory: bool,
    window: usize,
    max_message_bytes: usize,
    timeout: Duration,
}

shows_only! {
    RabbitMqSinkBuilder { exchange, routing_key }
    RabbitMqSink { exchange, routing_key }
}
has_limits!(RabbitMqSinkBuilder, "the broker");

impl RabbitMqSink {
    /// Begins the configuration of a sink that publishes to the broker at this URL:
    /// `amqp://user:password@host/vhost`, or `amqps://` for TLS.
    pub fn to(url: impl Into<String>) -> RabbitMqSinkBuilder {
        RabbitMqSinkBuilder {
            url: url.into(),
            root_certificates: None,
            exchange: String::new(),
            routing_key: "{queue}".to_owned(),
            mandatory: true,
            window: WINDOW,
            max_message_bytes: MAX_MESSAGE_BYTES,
            timeout: crate::TIMEOUT,
        }
    }
}

impl RabbitMqSinkBuilder {
    /// The exchange. Default the one without a name, where the routing key is the name of a queue.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// The routing key, which may be a [`Template`]. Default `{queue}`.
    pub fn routing_key(mut self, routing_key: impl Into<String>) -> Self {
        self.routing_key = routing_key.into();
        self
    }

    /// A file of root certificates to trust besides the system's. It is read at every connection.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// Whether a queue must take each message. Default true; otherwise what no queue takes is gone.
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// The size above which a payload is a dead letter. Default 16 MiB, as RabbitMQ's `max_message_size`.
    pub fn max_message_bytes(mut self, max_message_bytes: usize) -> Self {
        self.max_message_bytes = max_message_bytes;
        self
    }

    /// The sink, or what is wrong with its configuration. It connects when there is something to publish.
    pub fn build(self) -> Result<RabbitMqSink, SinkError> {
        let invalid = SinkError::invalid;
        // Not the URL, nor what its parser says of it: it may hold a password.
        let uri = whole(&self.url)?.parse::<AMQPUri>();
        let mut uri = uri.map_err(|_| invalid("url", "…", "an amqp:// or amqps:// URL"))?;
        let lane = Lane::new(self.window, self.timeout)?;
        let exchange = ShortString::try_new(self.exchange.clone());
        let exchange =
            exchange.map_err(|_| invalid("exchange", &self.exchange, "255 bytes or less"))?;
        // A connection that is given up ends soon even if the broker says nothing any more.
        let seconds = u16::try_from(self.timeout.as_secs()).unwrap_or(u16::MAX);
        uri.query.heartbeat.get_or_insert(seconds.max(1));
        Ok(RabbitMqSink {
            uri,
            root_certificates: self.root_certificates,
            exchange,
            routing_key: self.routing_key.parse::<Template>()?.checked(|key| {
                let checked = short("routing key", key.to_owned());
                checked.map(drop)
            })?,
            mandatory: self.mandatory,
            max_message_bytes: self.max_message_bytes,
            lane,
        })
    }
}

publishes_when_connected!(RabbitMqSink);

/// A message that is on its way.
type UnderWay<'a> =
    Pin<Box<MaybeDone<Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send + 'a>>>>>;

impl Connected for RabbitMqSink {
    const BROKER: &'static str = BROKER;
    type Connection = Connection;

    fn lane(&self) -> &Lane<Connection> {
        &self.lane
    }

    async fn open(&self, _: &Deadline) -> Result<Connection, String> {
        let root_certificates = self.root_certificates.as_deref();
        Connection::open(&self.uri, root_certificates, self.lane.timeout).await
    }

    async fn look(&self, connection: &Connection) -> Result<(), String> {
        let found = self.find(connection).await;
        found.map_err(|error| format!("{BROKER}: {error}"))
    }

    async fn send(
        &self,
        connection: &Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let channel = connection.channel().await;
        // Not shared while it is used: what the broker says on it is about these messages. After a failure it
        // is closed and not given back.
        let channel = channel.map_err(|error| {
            // The client takes a channel's number again, and with it what the broker said on it.
            connection.retire();
            later(BROKER, error)
        })?;
        self.send_on(&channel, connection, messages, confirmed)
            .await?;
        connection.give_back(channel);
        Ok(())
    }

    fn give_up(connection: &Connection, is_silent: bool) {
        // What it refuses on a channel is no trouble of the others'.
        if is_silent {
            connection.cut();
        }
    }
}

impl RabbitMqSink {
    /// Whether the exchange is there, or the queue if messages go to one directly.
    async fn find(&self, connection: &Connection) -> lapin::Result<()> {
        let channel = connection.channel().await?;
        let arguments = FieldTable::default();
        if !self.exchange.as_str().is_empty() {
            let options = ExchangeDeclareOptions {
                passive: true,
                ..Default::default()
            };
            // Nobody asks for the kind of an exchange that is there.
            let kind = ExchangeKind::Direct;
            let exchange = self.exchange.clone();
            channel
                .exchange_declare(exchange, kind, options, arguments)
                .await?;
        } else if let Some(Ok(queue)) = self.routing_key.constant().map(ShortString::try_new) {
            let options = QueueDeclareOptions {
                passive: true,
                ..Default::default()
            };
            channel.queue_declare(queue, options, arguments).await?;
        }
        connection.give_back(channel);
        Ok(())
    }

    async fn send_on(
        &self,
        channel: &Channel,
        connection: &Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut under_way = Vec::new();
        for message in messages {
            let prepared = self.prepare(connection, message);
            let Ok((routing_key, properties)) = prepared else {
                self.settle(&mut under_way, confirmed).await?;
                return prepared.map(|_| ());
            };
            let proven = connection.routes.is_proven(routing_key.as_str());
            let route = routing_key.as_str().to_owned();
            let sent = self.start(channel, message, routing_key, properties);
            under_way.push((message, sent.await));
            if !proven {
                self.settle(&mut under_way, confirmed).await?;
                connection.routes.prove(route);
            }
        }
        self.settle(&mut under_way, confirmed).await
    }

    /// Puts a message behind those that are on their way.
    async fn start<'a>(
        &self,
        channel: &'a Channel,
        message: &'a OutboxMessage,
        routing_key: ShortString,
        properties: BasicProperties,
    ) -> UnderWay<'a> {
        let exchange = self.exchange.clone();
        let options = BasicPublishOptions {
            mandatory: self.mandatory,
            ..Default::default()
        };
        let sent: Pin<Box<dyn Future<Output = _> + Send + 'a>> = Box::pin(async move {
            let payload = &message.payload;
            let sent = channel.basic_publish(exchange, routing_key, options, payload, properties);
            sent.await?.await
        });
        let mut sent = Box::pin(maybe_done(sent));
        // Polled once it has its place in the connection's queue; nobody waits for it yet.
        std::future::poll_fn(|context| {
            let _ = sent.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        sent
    }

    /// Waits for all that are on their way.
    async fn settle(
        &self,
        under_way: &mut Vec<(&OutboxMessage, UnderWay<'_>)>,
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut under_way = std::mem::take(under_way);
        let alone = under_way.len() == 1;
        let (mut first, mut returned) = (0, HashMap::new());
        std::future::poll_fn(|context| {
            // All of them, and in their order: the client hands a returned message over with any confirmation,
            // not always with its own, but never later than with its own.
            for (_, sent) in &mut under_way[first..] {
                if sent.as_mut().poll(context).is_ready()
                    && let Some(Ok(Confirmation::Ack(other) | Confirmation::Nack(other))) =
                        sent.as_mut().output_mut()
                    && let Some(other) = other.take()
                {
                    let identity = other.delivery.properties.message_id().clone();
                    returned.insert(identity.unwrap_or_default().to_string(), other);
                }
            }
            while let Some((message, sent)) = under_way.get_mut(first) {
                let Some(answer) = sent.as_mut().output_mut() else {
                    return Poll::Pending;
                };
                if let Some(returned) = returned.get(&message.identity()) {
                    return Poll::Ready(Err(self.unrouted(returned)));
                }
                match answer {
                    Ok(Confirmation::Ack(_)) => *confirmed += 1,
                    Err(error) => return Poll::Ready(Err(refusal(error, alone))),
                    Ok(_) => {
                        let nack = "a queue refused the message (basic.nack)";
                        return Poll::Ready(Err(later(BROKER, nack)));
                    }
                }
                first += 1;
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    fn unrouted(&self, returned: &BasicReturnMessage) -> Refusal {
        let BasicReturnMessage {
            delivery,
            reply_code,
            reply_text,
        } = returned;
        let (exchange, key) = (&self.exchange, &delivery.routing_key);
        later(
            BROKER,
            format!(
                "exchange {:?} has no queue for routing key {:?} ({reply_code} {reply_text})",
                exchange.as_str(),
                key.as_str(),
            ),
        )
    }

    /// Its routing key and properties, or what RabbitMQ would never take.
    fn prepare(
        &self,
        connection: &Connection,
        message: &OutboxMessage,
    ) -> Result<(ShortString, BasicProperties), Refusal> {
        let bytes = message.payload.len();
        if bytes > self.max_message_bytes {
            let limit = self.max_message_bytes;
            let problem = format!("its payload has {bytes} bytes, {limit} are allowed");
            return Err(Refusal::never(problem));
        }
        let routing_key = self.routing_key.fill(message).map_err(Refusal::never)?;
        let routing_key = short("routing key", routing_key);
        let routing_key = routing_key.map_err(|problem| self.routing_key.refusal(problem))?;
        let (mut headers, mut size) = (FieldTable::default(), OTHER_PROPERTIES);
        for (name, value) in envelope::headers(message) {
            if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
                continue;
            }
            // With the length of the name, the type and the length of the value.
            size += name.len() + value.len() + 6;
            let value = LongString::from(value).into();
            let name = short("header", name).map_err(Refusal::never)?;
            headers.insert(name, value);
        }
        let limit = connection.frame_max();
        if size > limit {
            let problem =
                format!("its headers need {size} bytes, a frame of the broker has {limit}");
            return Err(Refusal::never(problem));
        }
        // Names that are too long are those of all messages.
        let identity = short("identity", message.identity()).map_err(Refusal::later)?;
        let since = message.created_at.duration_since(UNIX_EPOCH);
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(identity)
            .with_timestamp(since.unwrap_or_default().as_secs())
            .with_headers(headers);
        // Both are among the headers anyway, however long.
        if let Ok(kind) = ShortString::try_new(message.payload_type.clone()) {
            properties = properties.with_type(kind);
        }
        if let Some(Ok(content_type)) = envelope::content_type(message).map(ShortString::try_new) {
            properties = properties.with_content_type(content_type);
        }
        Ok((routing_key, properties))
    }
}

/// A text that AMQP allows 255 bytes for.
fn short(what: &str, text: String) -> Result<ShortString, String> {
    let bytes = text.len();
    let short = ShortString::try_new(text);
    short.map_err(|_| format!("the {what} has {bytes} bytes, AMQP allows 255"))
}

/// What the end of a channel or connection means for the first message that was not confirmed. If no other
/// was under way, a condition that failed is this message's own: we declare nothing.
fn refusal(error: &lapin::Error, alone: bool) -> Refusal {
    match error.kind() {
        ErrorKind::ProtocolError(problem)
            if alone
                && *problem.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) =>
        {
            Refusal::never(format!("{BROKER}: {error}"))
        }
        _ => later(BROKER, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: RabbitMqSinkBuilder| builder.build().unwrap_err().to_string();
        let error = refused(RabbitMqSink::to("amqp://u:12#34@y"));
        assert!(error.contains("# as %23"), "{error}");
        for url in [
            "http://u:secret@x",
            "",
            "u:secret@x",
            "amqp://u:secret@x:99999",
        ] {
            let error = refused(RabbitMqSink::to(url));
            assert!(
                error.contains("an amqp:// or amqps:// URL"),
                "{url}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        let to = || RabbitMqSink::to("amqp://u:secret@x");
        assert!(refused(to().window(0)).contains("window"));
        assert!(refused(to().timeout(Duration::ZERO)).contains("timeout"));
        assert!(refused(to().exchange("x".repeat(256))).contains("255 bytes"));
        assert!(refused(to().routing_key("{id}")).contains("{id}"));
        let sink = to().build().unwrap();
        assert!(!format!("{sink:?}").contains("secret"));
    }
}
