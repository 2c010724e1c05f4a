//! Redis streams: a window is appended by one script, which stops at the first message that is refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox::OutboxMessage;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, Script,
    ScriptInvocation, TlsCertificates,
};

use crate::connected::{Connected, publishes_when_connected, whole};
use crate::envelope;
use crate::error::SinkError;
use crate::link::{Deadline, Lane, Link, later};
use crate::settings::{has_limits, shows_only};
use crate::template::Template;
use crate::{Refusal, WINDOW, tls};

const BROKER: &str = "Redis";
/// The payload's field. No header of a message begins like that.
const DATA: &str = "ce-data";
/// How much one script appends, or one message: others wait meanwhile.
const SCRIPT_BYTES: usize = 1024 * 1024;
/// A command of Redis has a million arguments at most, and a message may need a hundred and fifty.
const SCRIPT_MESSAGES: usize = 1_000;

/// Appends to streams of Redis. A message is delivered when Redis has answered, which makes it as safe as
/// Redis is configured to be: `appendonly yes` with `appendfsync always` loses nothing in a crash, the defaults
/// lose what came since the last snapshot.
///
/// An entry has the fields of [the headers](crate#headers) and `ce-data`, the payload.
///
/// | | what becomes of the message |
/// |---|---|
/// | appended | delivered |
/// | a stream's name that cannot be filled in | dead letter |
/// | anything else, or nothing: out of memory, a key of another type, a replica, no connection | again, after a backoff |
///
/// The messages of a window are appended by a script, so the account needs `+eval`, `+evalsha` and
/// `+script|load` besides `+xadd`. Redis Cluster and Sentinel are not known to this sink.
pub struct RedisSink {
    client: Client,
    root_certificates: Option<PathBuf>,
    stream: Template,
    max_length: Option<u64>,
    script: Script,
    lane: Lane<Connection>,
}

/// Configures a [`RedisSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct RedisSinkBuilder {
    url: String,
    stream: String,
    max_length: Option<u64>,
    root_certificates: Option<PathBuf>,
    window: usize,
    timeout: Duration,
}

shows_only! {
    RedisSinkBuilder { stream }
    RedisSink { stream }
}
has_limits!(RedisSinkBuilder, "Redis");

impl RedisSink {
    /// Begins the configuration of a sink that appends to streams of the Redis at this URL:
    /// `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    pub fn to(url: impl Into<String>) -> RedisSinkBuilder {
        RedisSinkBuilder {
            url: url.into(),
            stream: "{queue}".to_owned(),
            max_length: None,
            root_certificates: None,
            window: WINDOW,
            timeout: crate::TIMEOUT,
        }
    }
}

impl RedisSinkBuilder {
    /// The stream's name, which may be a [`Template`]. Default `{queue}`.
    pub fn stream(mut self, stream: impl Into<String>) -> Self {
        self.stream = stream.into();
        self
    }

    /// Removes the oldest entries of a stream that has more than about so many, read or not. Default: none is
    /// removed, and a Redis without memory refuses what comes, which then waits in the outbox.
    pub fn max_length(mut self, max_length: u64) -> Self {
        self.max_length = Some(max_length);
        self
    }

    /// A file of root certificates to trust instead of the system's. It is read at every connection.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// The sink, or what is wrong with its configuration. It connects when there is something to publish.
    pub fn build(self) -> Result<RedisSink, SinkError> {
        let invalid = SinkError::invalid;
        // Not the URL: it may hold a password.
        let address = whole(&self.url)?.into_connection_info().ok();
        let client = address.and_then(|address| Client::open(address).ok());
        let client =
            client.ok_or_else(|| invalid("url", "…", "a redis:// or rediss:// URL with a host"))?;
        if self.max_length == Some(0) {
            return Err(invalid("max_length", "0", "1 or more"));
        }
        let lane = Lane::new(self.window, self.timeout)?;
        Ok(RedisSink {
            client,
            root_certificates: self.root_certificates,
            stream: self.stream.parse()?,
            max_length: self.max_length,
            script: Script::new(include_str!("redis/append.lua")),
            lane,
        })
    }
}

publishes_when_connected!(RedisSink);

pub(crate) struct Connection {
    client: MultiplexedConnection,
    given_up: AtomicBool,
}

impl Link for Connection {
    /// One that broke since it was used last is found out by using it.
    fn is_alive(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed)
    }
}

impl Connected for RedisSink {
    const BROKER: &'static str = BROKER;
    type Connection = Connection;

    fn lane(&self) -> &Lane<Connection> {
        &self.lane
    }

    async fn open(&self, _: &Deadline) -> Result<Connection, String> {
        tls::choose_cryptography();
        // Ours ends first, and knows what was confirmed until then.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let trusting = match &self.root_certificates {
            Some(path) => trusting(&self.client, path).map_err(|problem| {
                let path = path.display();
                format!("{BROKER}: {path}: {problem}")
            })?,
            None => self.client.clone(),
        };
        let client = trusting.get_multiplexed_async_connection_with_config(&config);
        let client = client.await.map_err(|error| {
            let address = self.client.get_connection_info().addr();
            format!("{BROKER}: {address}: {error}")
        })?;
        Ok(Connection {
            client,
            given_up: AtomicBool::new(false),
        })
    }

    /// Whether scripts may be run, and the stream is one, where its name is known.
    async fn look(&self, connection: &Connection) -> Result<(), String> {
        let mut client = connection.client.clone();
        let prepared = self.script.prepare_invoke();
        let loaded = prepared.load_async(&mut client).await;
        loaded.map_err(|error| format!("{BROKER}: {error}"))?;
        let Some(stream) = self.stream.constant() else {
            return Ok(());
        };
        let kind: Result<String, _> = redis::cmd("TYPE")
            .arg(stream)
            .query_async(&mut client)
            .await;
        match kind.map_err(|error| format!("{BROKER}: {error}"))?.as_str() {
            "stream" | "none" => Ok(()),
            kind => Err(format!("{BROKER}: {stream:?} is a {kind}, not a stream")),
        }
    }

    async fn send(
        &self,
        connection: &Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> Result<(), Refusal> {
        let mut client = connection.client.clone();
        while *confirmed < messages.len() {
            let Piece {
                invocation,
                count,
                problem,
            } = self.piece(&messages[*confirmed..]);
            if count > 0 {
                let answer = invocation.invoke_async(&mut client).await;
                let (appended, error): (usize, String) =
                    answer.map_err(|error| later(BROKER, error))?;
                *confirmed += appended.min(count);
                if appended < count {
                    return Err(later(BROKER, error));
                }
            }
            if let Some(problem) = problem {
                return Err(problem);
            }
        }
        Ok(())
    }

    fn give_up(connection: &Connection, _: bool) {
        connection.given_up.store(true, Ordering::Relaxed);
    }
}

/// What one script appends.
struct Piece<'a> {
    invocation: ScriptInvocation<'a>,
    count: usize,
    /// Why the message behind it can never be appended.
    problem: Option<Refusal>,
}

impl RedisSink {
    /// As many of the first messages as one script may append.
    fn piece(&self, messages: &[OutboxMessage]) -> Piece<'_> {
        let mut piece = Piece {
            invocation: self.script.prepare_invoke(),
            count: 0,
            problem: None,
        };
        let mut bytes = 0;
        for message in messages.iter().take(SCRIPT_MESSAGES) {
            let stream = match self.stream.fill(message) {
                Ok(stream) => stream,
                Err(missing) => {
                    piece.problem = Some(Refusal::never(missing));
                    break;
                }
            };
            let arguments = self.arguments(message);
            bytes += stream.len() + arguments.iter().map(Vec::len).sum::<usize>();
            if piece.count > 0 && bytes > SCRIPT_BYTES {
                break;
            }
            let invocation = &mut piece.invocation;
            invocation.key(stream).arg(arguments.len()).arg(arguments);
            piece.count += 1;
        }
        piece
    }

    /// What XADD is told besides the stream.
    fn arguments(&self, message: &OutboxMessage) -> Vec<Vec<u8>> {
        let mut arguments: Vec<Vec<u8>> = Vec::new();
        if let Some(max_length) = self.max_length {
            let max_length = max_length.to_string();
            arguments.extend(["MAXLEN", "~", &max_length].map(Into::into));
        }
        arguments.push("*".into());
        for (name, value) in envelope::headers(message) {
            arguments.extend([name.into_bytes(), value.into_bytes()]);
        }
        arguments.extend([DATA.into(), message.payload.clone()]);
        arguments
    }
}

/// A client that trusts the certificates in a file; without TLS there is nobody to trust.
fn trusting(client: &Client, path: &Path) -> Result<Client, String> {
    let info = client.get_connection_info();
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return Ok(client.clone());
    }
    let root_cert = std::fs::read(path).map_err(|error| error.to_string())?;
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(root_cert),
    };
    Client::build_with_tls(info.clone(), certificates).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_as_large_as_all_that_its_messages_have() {
        let sink = RedisSink::to("redis://x").stream("{key}").build().unwrap();
        let counts = |change: fn(&mut OutboxMessage)| {
            let mut message = outbox::testing::message("body", "t");
            message.key = Some("k".to_owned());
            change(&mut message);
            sink.piece(&vec![message; 10]).count
        };
        assert_eq!(counts(|_| {}), 10);
        assert_eq!(counts(|message| message.payload = vec![0; 400_000]), 2);
        let header = |message: &mut OutboxMessage| {
            let value = "x".repeat(400_000);
            message.headers.insert("colour".to_owned(), value);
        };
        assert_eq!(counts(header), 2);
        // Once as the stream's name, and once as an attribute.
        assert_eq!(counts(|message| message.key = Some("k".repeat(200_000))), 2);
        // One that is too large for any script still has one of its own.
        assert_eq!(counts(|message| message.payload = vec![0; 2_000_000]), 1);
    }

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: RedisSinkBuilder| builder.build().unwrap_err().to_string();
        let error = refused(RedisSink::to("redis://u:12#34@y"));
        assert!(error.contains("# as %23"), "{error}");
        for url in ["http://:secret@x", "", "redis://:secret@x:99999"] {
            let error = refused(RedisSink::to(url));
            assert!(error.contains("redis:// or rediss://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(refused(RedisSink::to("redis://x").max_length(0)).contains("max_length"));
        assert!(refused(RedisSink::to("redis://x").window(0)).contains("window"));
        assert!(refused(RedisSink::to("redis://x").stream("{id}")).contains("{id}"));
        let sink = RedisSink::to("rediss://u:secret@x/1").build();
        assert!(!format!("{:?}", sink.unwrap()).contains("secret"));
    }
}
