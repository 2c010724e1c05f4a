//! A connection to RabbitMQ, with a channel for each partition that publishes at the moment.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lapin::options::ConfirmSelectOptions;
use lapin::tcp::{AMQPUriTcpExt as _, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Channel, ConnectionProperties};

use super::BROKER;
use crate::link::Link;
use crate::lock;
use crate::routes::Routes;

/// How many channels wait for the next partition.
const IDLE_CHANNELS: usize = 256;

pub(crate) struct Connection {
    client: lapin::Connection,
    socket: Socket,
    channels: Mutex<Vec<Channel>>,
    pub(super) routes: Routes,
    /// Whether it is of no use for anything new.
    is_retired: AtomicBool,
}

impl Link for Connection {
    fn is_alive(&self) -> bool {
        !self.is_retired.load(Ordering::Acquire) && self.client.status().connected()
    }
}

impl Connection {
    pub(super) async fn open(
        uri: &AMQPUri,
        root_certificates: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let cert_chain = root_certificates.map(|path| {
            let read = std::fs::read_to_string(path);
            read.map_err(|error| format!("{BROKER}: {}: {error}", path.display()))
        });
        let config = OwnedTLSConfig {
            cert_chain: cert_chain.transpose()?,
            ..OwnedTLSConfig::default()
        };
        let (host, port) = (&uri.authority.host, uri.authority.port);
        let failed = |error: lapin::Error| format!("{BROKER} at {host}:{port}: {error}");
        let socket = Socket::default();
        let mut connecting = Connecting(Some(socket.clone()));
        let held = socket.clone();
        let client = lapin::Connection::connector(
            uri.clone(),
            lapin::runtime::default_runtime().map_err(failed)?,
            async move |uri: AMQPUri, runtime| {
                let connected = uri.connect_with_config_async(config.as_ref(), &runtime);
                // Nobody else ends the client's thread if the other side says nothing.
                let stream = tokio::time::timeout(timeout, connected).await;
                let stream = stream.unwrap_or_else(|elapsed| Err(elapsed.into()))?;
                held.hold(match &stream {
                    AsyncTcpStream::Plain(stream) => stream.get_ref(),
                    AsyncTcpStream::Rustls(stream) => stream.get_ref().0.get_ref(),
                    _ => return Ok(stream),
                })?;
                Ok(stream)
            },
            ConnectionProperties::default().with_connection_name("outbox".into()),
        );
        let client = client.await.map_err(failed)?;
        connecting.0 = None;
        Ok(Self {
            client,
            socket,
            channels: Mutex::default(),
            routes: Routes::default(),
            is_retired: AtomicBool::new(false),
        })
    }

    /// A channel of one's own, until it is given back.
    pub(super) async fn channel(&self) -> lapin::Result<Channel> {
        loop {
            let idle = self.idle_channels().pop();
            let Some(channel) = idle else { break };
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.client.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }

    /// Only if nothing is open on it.
    pub(super) fn give_back(&self, channel: Channel) {
        let mut idle = self.idle_channels();
        if idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }

    fn idle_channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        lock(&self.channels)
    }

    /// The largest frame the broker takes.
    pub(super) fn frame_max(&self) -> usize {
        self.client.configuration().frame_max() as usize
    }

    /// Leaves it to those who use it already.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Ends it at once, whatever the broker does: nothing that is still in a queue of ours is sent any more.
    pub(super) fn cut(&self) {
        self.retire();
        self.socket.cut();
    }
}

/// The socket below the client, which has no way to end without the broker.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    Connecting,
    Open(TcpStream),
    Cut,
}

impl Socket {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Remembers it, unless it came too late.
    fn hold(&self, stream: &tokio::net::TcpStream) -> io::Result<()> {
        let stream = stream.as_fd().try_clone_to_owned()?;
        let mut state = self.state();
        if let State::Cut = *state {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *state = State::Open(stream.into());
        Ok(())
    }

    fn cut(&self) {
        if let State::Open(stream) = std::mem::replace(&mut *self.state(), State::Cut) {
            // If it is closed already, so be it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Cut if nobody waits for it any more.
struct Connecting(Option<Socket>);

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.cut();
        }
    }
}
