//! NATS JetStream: acknowledged by the stream, many under way. The connection is in `connection`.

mod connection;

use std::path::PathBuf;
use std::time::Duration;

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::{HeaderMap, HeaderName, HeaderValue, ServerAddr};
use outbox::OutboxMessage;

use crate::connected::{Connected, publishes_when_connected, whole};
use crate::envelope;
use crate::error::SinkError;
use crate::link::{Deadline, Lane, later};
use crate::settings::{has_limits, shows_only};
use crate::template::Template;
use crate::{Refusal, WINDOW};
use connection::{Access, Connection};

const BROKER: &str = "NATS";
/// The first line and the last of what NATS writes headers as.
const HEADERS_FRAME: usize = "NATS/1.0\r\n\r\n".len();
/// What subjects of the server itself and of waiting clients begin with. A message to one of them is a command, or an
/// answer to somebody's request.
const RESERVED: [&str; 2] = ["$", "_INBOX."];
/// What a header costs besides its name and value.
const HEADER_FRAME: usize = ": \r\n".len();

/// Publishes to a stream of NATS JetStream. A message is delivered when the stream has acknowledged it. The
/// `Nats-Msg-Id` is the message's identity, so within the stream's duplicate window a redelivery is not even
/// stored.
///
/// | | what becomes of the message |
/// |---|---|
/// | acknowledged, also as a duplicate | delivered |
/// | too large for the server or the stream, a subject or a header's name that NATS cannot have | dead letter |
/// | a subject that begins with `$` or `_INBOX.`, unless the template itself begins so: `$JS.API.…` is a command | dead letter |
/// | anything else, or nothing: no such stream, no permission, stream full, no connection | again, after a backoff |
///
/// A stream that refuses when it is full (`discard: new`) may refuse one message and take the next, so it is
/// given one at a time. A cluster that changes a stream's leader may lose one message and take the next;
/// where that matters more than speed, [`window(1)`](NatsSinkBuilder::window) keeps the order.
pub struct NatsSink {
    servers: Vec<ServerAddr>,
    access: Access,
    stream: String,
    subject: Template,
    lane: Lane<Connection>,
}

/// Configures a [`NatsSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct NatsSinkBuilder {
    servers: String,
    access: Access,
    stream: String,
    subject: String,
    window: usize,
    timeout: Duration,
}

shows_only! {
    NatsSinkBuilder { stream, subject }
    NatsSink { stream, subject }
}
has_limits!(NatsSinkBuilder, "NATS");

impl NatsSink {
    /// Begins the configuration of a sink that publishes to this stream of these servers:
    /// `nats://user:password@host:4222`, `nats://token@host`, `tls://host`, several with commas between
    /// them. The stream must be there; nobody but its owner knows how long it should keep what.
    pub fn to(servers: impl Into<String>, stream: impl Into<String>) -> NatsSinkBuilder {
        NatsSinkBuilder {
            servers: servers.into(),
            access: Access::default(),
            stream: stream.into(),
            subject: "{queue}".to_owned(),
            window: WINDOW,
            timeout: crate::TIMEOUT,
        }
    }
}

impl NatsSinkBuilder {
    /// The subject, which may be a [`Template`]. Default `{queue}`.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// A credentials file, which is read at every connection.
    pub fn credentials(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.credentials = Some(path.into());
        self
    }

    /// A file of root certificates to trust instead of the system's.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.root_certificates = Some(path.into());
        self
    }

    /// The sink, or what is wrong with its configuration. It connects when there is something to publish.
    pub fn build(self) -> Result<NatsSink, SinkError> {
        let invalid = SinkError::invalid;
        // Not the address: it may hold a password.
        let server = |address: &str| {
            let parsed = whole(address.trim())?.parse::<ServerAddr>().ok();
            let server =
                parsed.filter(|server| !server.host().is_empty() && !server.is_websocket());
            let allowed = "nats:// or tls:// URLs with commas between them";
            server.ok_or_else(|| invalid("url", "…", allowed))
        };
        let servers: Result<Vec<_>, _> = self.servers.split(',').map(server).collect();
        let servers = servers?;
        if self.stream.is_empty() || self.stream.contains(['.', '*', '>', ' ', '/', '\\']) {
            let allowed = "a stream's name, without . * > / \\ and spaces";
            return Err(invalid("stream", &self.stream, allowed));
        }
        let lane = Lane::new(self.window, self.timeout)?;
        Ok(NatsSink {
            servers,
            access: self.access,
            stream: self.stream,
            subject: self.subject.parse::<Template>()?.checked(publishable)?,
            lane,
        })
    }
}

publishes_when_connected!(NatsSink);

impl Connected for NatsSink {
    const BROKER: &'static str = BROKER;
    type Connection = Connection;

    fn lane(&self) -> &Lane<Connection> {
        &self.lane
    }

    async fn open(&self, deadline: &Deadline) -> Result<Connection, String> {
        Connection::open(&self.servers, &self.access, &self.stream, deadline).await
    }

    /// Whether the stream takes the subject, where that is known.
    async fn look(&self, connection: &Connection) -> Result<(), String> {
        match self.subject.constant() {
            Some(subject) => connection.takes(&self.stream, subject).await,
            None => Ok(()),
        }
    }

    async fn send(
        &self,
        connection: &Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut under_way = Vec::new();
        for message in messages {
            let (subject, headers) = match self.prepare(connection, message) {
                Ok(prepared) => prepared,
                Err(_) => {
                    settle(&mut under_way, confirmed).await?;
                    // The stream's owner may have raised the limit.
                    let looked = connection.look_again(&self.stream).await;
                    looked.map_err(Refusal::later)?;
                    self.prepare(connection, message)?
                }
            };
            let alone = connection.one_by_one() || !connection.routes.is_proven(&subject);
            if alone {
                settle(&mut under_way, confirmed).await?;
            }
            let payload = message.payload.clone().into();
            let context = &connection.context;
            let sent = context.publish_with_headers(subject.clone(), headers, payload);
            under_way.push(sent.await.map_err(|error| later(BROKER, error))?);
            if alone {
                let settled = settle(&mut under_way, confirmed).await;
                settled.map_err(|refusal| about(&subject, refusal))?;
                connection.routes.prove(subject);
            }
        }
        settle(&mut under_way, confirmed).await
    }

    fn give_up(connection: &Connection, _: bool) {
        connection.give_up();
    }

    fn explain(connection: &Connection, problem: String) -> String {
        connection.explain(problem)
    }
}

impl NatsSink {
    /// Its subject and headers, or what NATS would never take.
    fn prepare(
        &self,
        connection: &Connection,
        message: &OutboxMessage,
    ) -> Result<(String, HeaderMap), Refusal> {
        let subject = self.subject.fill(message).map_err(Refusal::never)?;
        let usable = publishable(&subject).and_then(|()| unreserved(&self.subject, &subject));
        usable.map_err(|problem| self.subject.refusal(problem))?;
        let mut headers = HeaderMap::new();
        let mut size = HEADERS_FRAME + message.payload.len();
        let own = [
            (NATS_MESSAGE_ID.to_string(), message.identity()),
            (NATS_EXPECTED_STREAM.to_string(), self.stream.clone()),
        ];
        let passed_on = envelope::headers(message).filter(|(name, _)| !means_something(name));
        for (name, value) in own.into_iter().chain(passed_on) {
            size += name.len() + value.len() + HEADER_FRAME;
            let refuse = |what| Refusal::never(format!("NATS has no header {name:?} with {what}"));
            let key: HeaderName = name.parse().map_err(|_| refuse("such a name"))?;
            // It would end the header. What a failed handler said of itself often has one.
            let value = value.replace(['\r', '\n'], " ");
            let value: HeaderValue = value.parse().map_err(|_| refuse("such a value"))?;
            headers.insert(key, value);
        }
        let limit = connection.max_bytes();
        if size > limit {
            let problem = format!("it has {size} bytes with its headers, {limit} are allowed");
            return Err(Refusal::never(problem));
        }
        Ok((subject, headers))
    }
}

/// What NATS says of a subject without naming it.
fn about(subject: &str, refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Later { reason, after } => Refusal::Later {
            reason: format!("{reason}: the subject {subject:?}"),
            after,
        },
        never => never,
    }
}

/// Waits for all that are on their way.
async fn settle(
    under_way: &mut Vec<PublishAckFuture>,
    confirmed: &mut usize,
) -> Result<(), Refusal> {
    for acknowledged in under_way.drain(..) {
        acknowledged.await.map_err(|error| later(BROKER, error))?;
        *confirmed += 1;
    }
    Ok(())
}

/// Refuses a subject that cannot be published to: it is words with dots between them, and no wildcards.
fn publishable(subject: &str) -> Result<(), String> {
    let is_word = |word: &str| {
        !word.is_empty()
            && !matches!(word, "*" | ">")
            && !word.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    match subject.split('.').all(is_word) {
        true => Ok(()),
        false => Err(format!(
            "NATS has no subject {subject:?}: it is words with dots between them, without spaces, * and >"
        )),
    }
}

/// Refuses a subject by which a message would speak to the server or to a client, unless whoever wrote the template
/// wants that of all of them.
fn unreserved(template: &Template, subject: &str) -> Result<(), String> {
    let written = template.beginning();
    let chosen = |start: &&str| subject.starts_with(*start) && !written.starts_with(*start);
    match RESERVED.into_iter().find(chosen) {
        None => Ok(()),
        Some(start) => Err(format!(
            "the subject {subject:?} is not for messages: what begins with {start} is NATS's own, and the template \
             {:?} does not begin so",
            template.to_string()
        )),
    }
}

/// Whether it is a header by which the server is asked for something.
fn means_something(header: &str) -> bool {
    const START: &str = "nats-";
    let start = header.get(..START.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(START))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: NatsSinkBuilder| builder.build().unwrap_err().to_string();
        for url in ["http://u:secret@x", "", "nats://a,,nats://b", "ws://x"] {
            let error = refused(NatsSink::to(url, "ORDERS"));
            assert!(error.contains("nats:// or tls://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        for password in ["se/cret", "12#34", "12?34"] {
            let error = refused(NatsSink::to(
                format!("nats://x, nats://u:{password}@y"),
                "A",
            ));
            assert!(error.contains("# as %23"), "{password}: {error}");
        }
        assert!(refused(NatsSink::to("nats://x", "a.b")).contains("stream"));
        assert!(refused(NatsSink::to("nats://x", "A").window(0)).contains("window"));
        assert!(refused(NatsSink::to("nats://x", "A").subject("{id}")).contains("{id}"));
        for subject in ["orders.>", "orders new", "{queue}..{key}", ""] {
            let error = refused(NatsSink::to("nats://x", "A").subject(subject));
            assert!(error.contains("words with dots"), "{subject}: {error}");
        }
        let sink = NatsSink::to("nats://u:secret@a:1, tls://b", "A").build();
        assert!(!format!("{:?}", sink.unwrap()).contains("secret"));
    }

    #[test]
    fn a_subject_is_words_with_dots() {
        for good in ["orders", "orders.placed.7", "a.*b", "ž"] {
            assert!(publishable(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "a..b", "a.", "a.*", ">", "a b", "a\r\nPUB b"] {
            assert!(publishable(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_message_chooses_a_subject_of_the_servers_own() {
        let refused = |template: &str, subject: &str| {
            unreserved(&template.parse().unwrap(), subject).is_err()
        };
        for subject in ["$JS.API.STREAM.DELETE.A", "$SYS.REQ", "$", "_INBOX.x.1"] {
            assert!(refused("{key}", subject), "{subject}");
            assert!(refused("{header:to}.{key}", subject), "{subject}");
        }
        // Not by half of it either.
        assert!(refused("_IN{key}", "_INBOX.x"));
        for (template, subject) in [
            ("{key}", "orders.$JS"),
            ("{key}", "_INBOXES"),
            ("{key}", "_x"),
            ("$KV.orders.{key}", "$KV.orders.7"),
            ("_INBOX.{key}", "_INBOX.7"),
        ] {
            assert!(!refused(template, subject), "{template}: {subject}");
        }
    }
}
