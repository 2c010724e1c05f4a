//! A connection to one of the servers, which ends when it breaks.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{DiscardPolicy, Stream};
use async_nats::{Client, ConnectOptions, Event, ReconnectToServer, ServerAddr};
use percent_encoding::percent_decode_str;

use super::BROKER;
use crate::link::{Deadline, Link};
use crate::lock;
use crate::routes::Routes;
use crate::tls;

/// Where nobody ever listens.
const NOWHERE: &str = "nats://127.0.0.1:0";
/// Who we are, in the server's list of connections.
const NAME: &str = concat!("outbox/", env!("CARGO_PKG_VERSION"));
/// No window is ever so large that the client should hold messages back on its own account.
const NO_LIMIT: usize = 1 << 20;

/// How a server knows us, and we know it, besides what its address says.
#[derive(Debug, Clone, Default)]
pub(super) struct Access {
    pub(super) credentials: Option<PathBuf>,
    pub(super) root_certificates: Option<PathBuf>,
}

pub(crate) struct Connection {
    pub(super) context: Context,
    pub(super) routes: Routes,
    /// What a message may have with its headers.
    max_bytes: AtomicUsize,
    /// Whether the stream may refuse one message and take the next.
    one_by_one: AtomicBool,
    client: Client,
    said: Said,
    given_up: AtomicBool,
}

/// The last error that the server sent on its own account, such as that a permission is missing: nothing
/// else comes of such a request.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Option<String>>>);

impl Said {
    fn note(&self, error: String) {
        *lock(&self.0) = Some(error);
    }

    /// A problem, with what may be its cause.
    fn explain(&self, problem: String) -> String {
        match &*lock(&self.0) {
            Some(said) => format!("{problem}, but said: {said}"),
            None => problem,
        }
    }
}

impl Link for Connection {
    fn is_alive(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.client.connection_state() == State::Connected
    }
}

impl Connection {
    /// Connects to the first server that answers and looks at the stream.
    pub(super) async fn open(
        servers: &[ServerAddr],
        access: &Access,
        stream: &str,
        deadline: &Deadline,
    ) -> Result<Self, String> {
        let mut problem = String::new();
        // None may use up the time of the others.
        let patience = deadline.timeout() / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        for server in servers {
            let said = Said::default();
            match connect(server, access, patience, said.clone()).await {
                Ok(client) => {
                    let looked = deadline
                        .limit(Self::look(client, stream, deadline, said.clone()))
                        .await;
                    return looked.map_err(|problem| said.explain(problem))?;
                }
                Err(error) => {
                    let address = format!("{}:{}", server.host(), server.port());
                    problem = format!("{BROKER} at {address}: {error}");
                }
            }
        }
        Err(problem)
    }

    async fn look(
        client: Client,
        stream: &str,
        deadline: &Deadline,
        said: Said,
    ) -> Result<Self, String> {
        let context = ContextBuilder::new()
            // Ours ends first, and knows what was confirmed until then.
            .timeout(deadline.timeout() * 2)
            .max_ack_inflight(NO_LIMIT)
            .build(client.clone());
        let connection = Self {
            routes: Routes::default(),
            max_bytes: AtomicUsize::new(0),
            one_by_one: AtomicBool::new(true),
            context,
            client,
            said,
            given_up: AtomicBool::new(false),
        };
        connection.look_again(stream).await?;
        Ok(connection)
    }

    async fn stream(&self, name: &str) -> Result<Stream, String> {
        self.context.get_stream(name).await.map_err(|error| {
            format!("{BROKER}: the stream {name:?}: {error}; create it, or name another one")
        })
    }

    /// Says so if a stream does not take a subject.
    pub(super) async fn takes(&self, stream: &str, subject: &str) -> Result<(), String> {
        let info = self.stream(stream).await?;
        let subjects = &info.cached_info().config.subjects;
        if subjects.iter().any(|pattern| stands_for(pattern, subject)) {
            return Ok(());
        }
        let subjects = subjects.join(", ");
        Err(format!(
            "{BROKER}: the stream {stream:?} takes {subjects}, not the subject {subject:?}; set another `subject`, \
             or add this one to the stream"
        ))
    }

    /// Learns what the stream takes, which its owner can change.
    pub(super) async fn look_again(&self, stream: &str) -> Result<(), String> {
        let stream = self.stream(stream).await?;
        let config = &stream.cached_info().config;
        let limits = [usize::try_from(config.max_message_size).ok()];
        let limits = limits.into_iter().flatten().filter(|limit| *limit > 0);
        let max_bytes = limits.fold(self.client.server_info().max_payload, usize::min);
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        let one_by_one = config.discard == DiscardPolicy::New;
        self.one_by_one.store(one_by_one, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn one_by_one(&self) -> bool {
        self.one_by_one.load(Ordering::Relaxed)
    }

    /// Lets the next one who publishes make a new one. Those who wait for something on this one still may.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn explain(&self, problem: String) -> String {
        self.said.explain(problem)
    }
}

/// Whether a pattern, in which `*` is any token and `>` all that follow, is one for a subject.
fn stands_for(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match tokens.next() {
            Some(_) if wanted == ">" => return true,
            Some(token) if wanted == "*" || wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// A client that would mend its connection sends what it still has on the new one, after what was lost with
/// the old one: out of order. So this one is told of a place where nobody is, once it has been connected, and
/// then gives up.
async fn connect(
    server: &ServerAddr,
    access: &Access,
    patience: Duration,
    said: Said,
) -> Result<Client, String> {
    tls::choose_cryptography();
    let nowhere: ServerAddr = NOWHERE.parse().map_err(|error| format!("{error}"))?;
    let servers = vec![server.clone(), nowhere.clone()];
    let (server, first) = (server.clone(), AtomicBool::new(true));
    let mut options = authenticated(&server, access)
        .await?
        .name(NAME)
        .connection_timeout(patience)
        .request_timeout(None)
        .ignore_discovered_servers()
        .max_reconnects(1)
        .event_callback(move |event| {
            if let Event::ServerError(error) = event {
                said.note(error.to_string());
            }
            async {}
        });
    if let Some(path) = &access.root_certificates {
        // The client does not say which file it cannot read.
        let read = std::fs::File::open(path);
        read.map_err(|error| format!("{}: {error}", path.display()))?;
        options = options.add_root_certificates(path.clone());
    }
    let options = options.reconnect_to_server_callback(move |_, _| {
        let is_first = first.swap(false, Ordering::Relaxed);
        let addr = if is_first { &server } else { &nowhere }.clone();
        let delay = Some(Duration::ZERO);
        async move { Some(ReconnectToServer { addr, delay }) }
    });
    let connected = options.connect(servers).await;
    connected.map_err(|error| error.to_string())
}

/// Who we say we are: what the credentials say, or else what the address does.
async fn authenticated(server: &ServerAddr, access: &Access) -> Result<ConnectOptions, String> {
    let options = ConnectOptions::new();
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match (&access.credentials, server.username(), server.password()) {
        (Some(path), _, _) => {
            let options = options.credentials_file(path).await;
            options.map_err(|error| format!("credentials {}: {error}", path.display()))
        }
        (None, Some(user), Some(password)) => {
            Ok(options.user_and_password(decoded(user), decoded(password)))
        }
        (None, Some(token), None) => Ok(options.token(decoded(token))),
        (None, None, _) => Ok(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_found_by_every_pattern_for_it() {
        for pattern in ["shop.orders.eu", "shop.*.eu", "*.*.*", "shop.>", ">"] {
            assert!(stands_for(pattern, "shop.orders.eu"), "{pattern}");
        }
        for pattern in [
            "shop.orders",
            "shop.*",
            "shop.orders.eu.>",
            "*.*.*.*",
            "shop.orders.us",
        ] {
            assert!(!stands_for(pattern, "shop.orders.eu"), "{pattern}");
        }
    }
}
