//! A wire between a test and its server that can be cut, go silent, or lose one reply: TCP is passed
//! on as it is, and nothing here knows what the bytes mean.
//!
//! A *request* is what a client sends after it has heard from the server (or has just connected),
//! however many packets it takes. With clients that wait for each answer, as sqlx does, that counts
//! exactly; what several connections send at once is counted in the order in which it arrives.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What goes wrong at the request that [`Wire::fail_at`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server never sees the request.
    BeforeRequest,
    /// The server answers the request, and the client never hears of it.
    LostReply,
}

/// What becomes of the wire once that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// As [`Wire::go_silent`].
    Silent,
    /// As [`Wire::cut`].
    Cut,
}

/// A TCP proxy in front of a database server. Dropping it closes all its connections.
pub struct Wire {
    url: String,
    state: Arc<watch::Sender<State>>,
    proxy: JoinHandle<()>,
}

impl Wire {
    /// Puts a wire in front of the server of a `postgres://` or `mysql://` URL.
    ///
    /// # Panics
    ///
    /// When the URL names no host, or there is no free port.
    pub async fn to(url: &str) -> Self {
        let (host, port) = host_and_port(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("the address listened on");
        let state = Arc::new(watch::Sender::new(State::default()));
        Self {
            url: in_the_clear(with_address(url, &own.to_string())),
            proxy: tokio::spawn(accept(listener, (host, port), Arc::clone(&state))),
            state,
        }
    }

    /// The server's URL by way of this wire.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Closes all connections there are. New ones work.
    pub fn cut(&self) {
        self.state.send_modify(State::cut);
    }

    /// Resets all connections there are: neither side gets what is under way, and both get an error. New
    /// ones work.
    pub fn reset(&self) {
        self.state.send_modify(|state| {
            state.reset_below = state.connections;
            state.cut();
        });
    }

    /// Closes, of all connections there are, the direction to the server, which finds out and closes the
    /// other one. New ones work.
    pub fn half_close(&self) {
        self.state
            .send_modify(|state| state.half_below = state.connections);
    }

    /// Closes all connections there are once so many more bytes have been passed on, wherever that is:
    /// in the middle of a request or of an answer.
    pub fn cut_after(&self, bytes: u64) {
        self.state
            .send_modify(|state| state.bytes_left = Some(bytes));
    }

    /// Keeps every packet for so long, in both directions, from now on.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Swallows every byte in both directions, from now on and of new connections too, which are
    /// accepted and never answered. Neither side learns that the other has closed its end. So it looks
    /// when the network is partitioned or a host has vanished.
    pub fn go_silent(&self) {
        self.state.send_modify(State::go_silent);
    }

    /// Lets new connections work again. Those that went silent stay silent.
    pub fn heal(&self) {
        self.state.send_modify(State::heal);
    }

    /// Lets the `n`th request from now on, over all connections and beginning with 1, fail.
    pub fn fail_at(&self, n: u64, fault: Fault, then: After) {
        self.arm(When::Nth(n), fault, then);
    }

    /// Lets the next request fail that has these bytes in it.
    pub fn fail_on(&self, bytes: &'static [u8], fault: Fault, then: After) {
        self.arm(When::Has(bytes), fault, then);
    }

    /// Takes back what [`fail_at`](Self::fail_at) asked for, if it has not happened yet. Whether it has.
    pub fn disarm(&self) -> bool {
        let mut tripped = false;
        self.state.send_modify(|state| {
            state.awaited = None;
            state.trap = None;
            tripped = state.tripped;
        });
        tripped
    }

    /// Takes back whatever was asked for, and cuts what went silent. New connections work as they should.
    pub fn restore(&self) {
        self.state.send_modify(|state| {
            *state = State {
                connections: state.connections,
                cut_below: state.connections,
                reset_below: state.reset_below,
                requests: state.requests,
                tripped: state.tripped,
                ..State::default()
            };
        });
    }

    fn arm(&self, when: When, fault: Fault, then: After) {
        self.state.send_modify(|state| {
            state.requests = 0;
            state.tripped = false;
            state.awaited = None;
            state.trap = Some(Trap { when, fault, then });
        });
    }

    /// How many requests came, since the wire was made or last armed by [`fail_at`](Self::fail_at).
    pub fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Whether what [`fail_at`](Self::fail_at) asked for has happened.
    pub fn tripped(&self) -> bool {
        self.state.borrow().tripped
    }

    /// Waits until what [`fail_at`](Self::fail_at) asked for has happened.
    pub async fn wait_tripped(&self) {
        let mut news = self.state.subscribe();
        // It only fails when the sender is gone, and that is ours.
        let _ = news.wait_for(|state| state.tripped).await;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wire = f.debug_struct("Wire");
        // Not the URL: it holds a password.
        wire.field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// What a connection has to do from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Forward,
    /// To the client only.
    Half,
    Silent,
    Cut,
}

impl Fate {
    /// In one direction at least.
    fn lets_through(self) -> bool {
        matches!(self, Self::Forward | Self::Half)
    }
}

/// Which request it is.
#[derive(Debug, Clone, Copy)]
enum When {
    Nth(u64),
    Has(&'static [u8]),
}

#[derive(Debug, Clone, Copy)]
struct Trap {
    when: When,
    fault: Fault,
    then: After,
}

/// Connections are numbered as they come, so that a fault that befalls "all so far" is one number.
#[derive(Debug, Default)]
struct State {
    connections: u64,
    cut_below: u64,
    reset_below: u64,
    half_below: u64,
    silent_below: u64,
    /// What may still pass before everything is cut.
    bytes_left: Option<u64>,
    delay: Duration,
    requests: u64,
    trap: Option<Trap>,
    /// The connection whose next reply gets lost.
    awaited: Option<u64>,
    tripped: bool,
}

impl State {
    fn cut(&mut self) {
        self.cut_below = self.connections;
    }

    fn go_silent(&mut self) {
        self.silent_below = u64::MAX;
    }

    fn heal(&mut self) {
        self.silent_below = self.silent_below.min(self.connections);
    }

    fn fate(&self, connection: u64) -> Fate {
        if connection < self.cut_below {
            Fate::Cut
        } else if connection < self.silent_below {
            Fate::Silent
        } else if connection < self.half_below {
            Fate::Half
        } else {
            Fate::Forward
        }
    }

    fn trip(&mut self) {
        self.tripped = true;
        self.awaited = None;
        match self.trap.take().map(|trap| trap.then) {
            Some(After::Silent) => self.go_silent(),
            Some(After::Cut) => self.cut(),
            None => {}
        }
    }

    /// The client has sent something; `begins` if it has heard from the server before.
    fn request(&mut self, connection: u64, bytes: &[u8], begins: bool) {
        self.requests += u64::from(begins);
        let Some(trap) = self.trap else { return };
        let is_it = match trap.when {
            When::Nth(n) => begins && n == self.requests,
            When::Has(wanted) => bytes.windows(wanted.len()).any(|part| part == wanted),
        };
        match trap.fault {
            _ if !is_it || self.awaited.is_some() => {}
            Fault::BeforeRequest => self.trip(),
            Fault::LostReply => self.awaited = Some(connection),
        }
    }

    /// How many of these bytes may pass; cuts if not all.
    fn pass(&mut self, bytes: usize) -> usize {
        let Some(left) = self.bytes_left else {
            return bytes;
        };
        let may = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
        self.bytes_left = Some(left - may as u64);
        if may < bytes {
            self.bytes_left = None;
            self.cut();
        }
        may
    }

    /// The server has answered, or one of the two has closed the connection, which loses the reply
    /// just as well.
    fn reply(&mut self, connection: u64) {
        if self.awaited == Some(connection) {
            self.trip();
        }
    }
}

async fn accept(listener: TcpListener, server: (String, u16), state: Arc<watch::Sender<State>>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(_) => continue,
            },
            Some(_) = connections.join_next() => continue,
        };
        let mut number = 0;
        state.send_modify(|state| {
            number = state.connections;
            state.connections += 1;
        });
        let link = Link {
            number,
            state: Arc::clone(&state),
        };
        connections.spawn(link.run(client, server.clone()));
    }
}

/// One connection.
struct Link {
    number: u64,
    state: Arc<watch::Sender<State>>,
}

impl Link {
    async fn run(self, mut client: TcpStream, server: (String, u16)) {
        if self.fate() == Fate::Silent {
            return self.swallow(&mut [client]).await;
        }
        // The client sees a server that cannot be reached as a connection that closes at once.
        let Ok(mut server) = TcpStream::connect(server).await else {
            return;
        };
        // A proxy that waits for more to send would cost 40 ms per round trip.
        if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
            return;
        }
        self.forward(&mut client, &mut server).await;
        self.state.send_modify(|state| state.reply(self.number));
        if self.fate() == Fate::Silent {
            return self.swallow(&mut [client, server]).await;
        }
        if self.state.borrow().reset_below > self.number {
            // A connection that has closed meanwhile cannot be reset.
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
    }

    fn fate(&self) -> Fate {
        self.state.borrow().fate(self.number)
    }

    /// Passes bytes on until one side has closed, or the wire fails.
    async fn forward(&self, client: &mut TcpStream, server: &mut TcpStream) {
        let mut news = self.state.subscribe();
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        // The server's bytes are noted before they are passed on: an answer to them comes later.
        let heard = AtomicBool::new(true);
        let request = |state: &mut State, bytes: &[u8]| {
            let begins = heard.swap(false, Ordering::SeqCst);
            state.request(self.number, bytes, begins);
        };
        let reply = |state: &mut State, _: &[u8]| {
            heard.store(true, Ordering::SeqCst);
            state.reply(self.number);
        };
        let answers = self.pass(from_server, to_client, reply);
        let until_half = async {
            let half = news.wait_for(|state| state.fate(self.number) == Fate::Half);
            // It only fails when the sender is gone, and that is ours.
            let _ = half.await;
        };
        let requests = async {
            let mut to_server = to_server;
            tokio::select! {
                () = self.pass(from_client, &mut to_server, request) => {}
                () = until_half => {
                    let _ = to_server.shutdown().await;
                    // The rest is up to the server.
                    std::future::pending::<()>().await;
                }
            }
        };
        let mut end = self.state.subscribe();
        tokio::select! {
            () = requests => {}
            () = answers => {}
            _ = end.wait_for(|state| !state.fate(self.number).lets_through()) => {}
        }
    }

    /// Passes one direction on. Each read is noted, which may be the end of it.
    async fn pass(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        note: impl Fn(&mut State, &[u8]),
    ) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let (mut fate, mut may, mut delay) = (Fate::Forward, read, Duration::ZERO);
            self.state.send_modify(|state| {
                // A byte that arrives after the wire failed is no request, and no reply either.
                if state.fate(self.number).lets_through() {
                    note(state, &buffer[..read]);
                }
                fate = state.fate(self.number);
                if fate.lets_through() {
                    may = state.pass(read);
                }
                delay = state.delay;
            });
            if !fate.lets_through() {
                return;
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if to.write_all(&buffer[..may]).await.is_err() || may < read {
                return;
            }
        }
    }

    /// Keeps the connections open and throws away what comes, until they are cut.
    async fn swallow(&self, streams: &mut [TcpStream]) {
        let mut news = self.state.subscribe();
        let swallow = async |stream: &mut TcpStream| {
            let _ = tokio::io::copy(stream, &mut tokio::io::sink()).await;
        };
        let swallow_all = async {
            futures_util::future::join_all(streams.iter_mut().map(swallow)).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = swallow_all => {}
            _ = news.wait_for(|state| state.fate(self.number) == Fate::Cut) => {}
        }
    }
}

/// Where `host:port` begins and ends in a URL.
fn address_range(url: &str) -> std::ops::Range<usize> {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    let end = url[scheme..]
        .find(['/', '?'])
        .map_or(url.len(), |at| scheme + at);
    let start = url[scheme..end]
        .rfind('@')
        .map_or(scheme, |at| scheme + at + 1);
    start..end
}

fn host_and_port(url: &str) -> (String, u16) {
    let address = &url[address_range(url)];
    // The colons of an IPv6 address stand in brackets.
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ if url.starts_with("postgres") => (address, Some(5432)),
        _ => (address, Some(3306)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    assert!(!host.is_empty(), "a URL with a host");
    (host.to_owned(), port.expect("a port that is a number"))
}

fn with_address(url: &str, address: &str) -> String {
    let range = address_range(url);
    format!("{}{address}{}", &url[..range.start], &url[range.end..])
}

/// Without TLS, which a driver would begin by itself with a server that offers it: what requests have in them
/// would not be seen.
fn in_the_clear(mut url: String) -> String {
    let setting = match url.split_once("://") {
        Some(("postgres" | "postgresql", _)) => "sslmode=disable",
        Some(("mysql" | "mariadb", _)) => "ssl-mode=disabled",
        _ => return url,
    };
    url.push(if url.contains('?') { '&' } else { '?' });
    url.push_str(setting);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_a_url_is_found_and_the_rest_kept() {
        for (url, host, port, expected) in [
            (
                "postgres://u:p@127.0.0.1:5433/postgres",
                "127.0.0.1",
                5433,
                "postgres://u:p@here:1/postgres",
            ),
            ("postgres://db", "db", 5432, "postgres://here:1"),
            (
                "mysql://u:p@localhost?ssl-mode=disabled&b=c/d@e",
                "localhost",
                3306,
                "mysql://u:p@here:1?ssl-mode=disabled&b=c/d@e",
            ),
            (
                "mysql://root@[::1]:99/a",
                "::1",
                99,
                "mysql://root@here:1/a",
            ),
            ("postgres://[::1]/a", "::1", 5432, "postgres://here:1/a"),
        ] {
            assert_eq!(host_and_port(url), (host.to_owned(), port), "{url}");
            assert_eq!(with_address(url, "here:1"), expected);
        }
        let clear = |url: &str| in_the_clear(url.to_owned());
        assert_eq!(clear("postgres://x/y"), "postgres://x/y?sslmode=disable");
        assert_eq!(clear("mysql://x?a=b"), "mysql://x?a=b&ssl-mode=disabled");
        assert_eq!(clear("nats://x"), "nats://x");
    }
}
