//! A connection to an MQTT broker: which answer belongs to which message.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, Packet, PubAckReason, Publish};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions};
use rumqttc::{Outgoing, TlsConfiguration, Transport};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::oneshot::{self, Receiver, Sender};
use tokio::task::AbortHandle;

use super::BROKER;
use crate::link::Link;
use crate::lock;
use crate::routes::Routes;

/// How many messages of all partitions wait to be sent.
const QUEUE: usize = 65_536;
/// What MQTT allows if the broker says nothing.
const MAX_PACKET_SIZE: usize = 268_435_455;

pub(crate) struct Connection {
    client: AsyncClient,
    unsent: Arc<Unsent>,
    driver: AbortHandle,
    end: Arc<OnceLock<String>>,
    pub(super) topics: Routes,
    pub(super) max_packet_size: usize,
}

/// Whose word is taken for who the broker is.
#[derive(Debug, Clone)]
pub(super) enum Trust {
    System,
    File(PathBuf),
}

impl Trust {
    pub(super) fn of(root_certificates: Option<PathBuf>) -> Self {
        root_certificates.map_or(Self::System, Self::File)
    }

    fn transport(&self) -> Result<Transport, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let config = match self {
            Self::System => {
                let config = config.with_platform_verifier();
                config.map_err(|error| format!("the system's certificates: {error}"))?
            }
            Self::File(path) => {
                let roots = read(path);
                let roots = roots.map_err(|error| format!("{}: {error}", path.display()))?;
                config.with_root_certificates(roots)
            }
        };
        let config = TlsConfiguration::Rustls(Arc::new(config.with_no_client_auth()));
        Ok(Transport::tls_with_config(config))
    }
}

/// The certificates in a file.
fn read(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        let added = roots.add(certificate);
        added.map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

impl Link for Connection {
    fn is_alive(&self) -> bool {
        self.unsent.queue().is_some()
    }
}

impl Connection {
    pub(super) async fn open(
        mut options: MqttOptions,
        trust: Option<&Trust>,
    ) -> Result<Self, String> {
        let (host, port) = options.broker_address();
        if let Some(trust) = trust {
            let transport = trust.transport();
            options.set_transport(transport.map_err(|problem| format!("{BROKER}: {problem}"))?);
        }
        let (client, mut events) = AsyncClient::new(options, QUEUE);
        let max_packet_size = loop {
            let event = events.poll().await;
            let event =
                event.map_err(|error| format!("{BROKER} at {host}:{port}: {}", said(&error)))?;
            if let Event::Incoming(Packet::ConnAck(answer)) = event {
                let limit = answer
                    .properties
                    .and_then(|properties| properties.max_packet_size);
                break limit.map_or(MAX_PACKET_SIZE, |limit| limit as usize);
            }
        };
        let unsent = Arc::new(Unsent::default());
        let end = Arc::default();
        let driver = drive(events, Closing(Arc::clone(&unsent)), Arc::clone(&end));
        Ok(Self {
            client,
            unsent,
            driver: tokio::spawn(driver).abort_handle(),
            end,
            topics: Routes::default(),
            max_packet_size,
        })
    }

    /// Puts a message behind those that are on their way, and answers where the broker's word will come.
    pub(super) fn send(&self, publish: Publish) -> Receiver<PubAckReason> {
        let (answer, answered) = oneshot::channel();
        // One after the other: the client sends in the order in which answers are waited for.
        let mut unsent = self.unsent.queue();
        let Some(queue) = &mut *unsent else {
            return answered;
        };
        let properties = publish.properties.unwrap_or_default();
        let topic = String::from_utf8_lossy(&publish.topic);
        let (qos, payload) = (publish.qos, publish.payload);
        let client = &self.client;
        match client.try_publish_with_properties(topic, qos, false, payload, properties) {
            Ok(()) => queue.push_back(answer),
            // What comes behind it must not find a place.
            Err(_) => *unsent = None,
        }
        answered
    }

    /// Why it ended.
    pub(super) fn end(&self) -> &str {
        self.end
            .get()
            .map_or("more messages wait than it can take", |end| end)
    }

    /// Ends it at once: nothing that is still in a queue of ours is sent any more.
    pub(super) fn cut(&self) {
        self.unsent.close();
        self.driver.abort();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Those who wait for an answer to what the client has not sent yet, in order. Nothing once the connection has
/// ended.
struct Unsent(Mutex<Option<VecDeque<Sender<PubAckReason>>>>);

impl Default for Unsent {
    fn default() -> Self {
        Self(Mutex::new(Some(VecDeque::new())))
    }
}

impl Unsent {
    fn queue(&self) -> MutexGuard<'_, Option<VecDeque<Sender<PubAckReason>>>> {
        lock(&self.0)
    }

    fn close(&self) {
        *self.queue() = None;
    }
}

/// Tells all who wait that no answer comes, however the connection ends.
struct Closing(Arc<Unsent>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Sends and receives until the connection ends. The client would connect again and send again what it has no
/// answer to; instead it is gone with the first error.
async fn drive(mut events: EventLoop, unsent: Closing, end: Arc<OnceLock<String>>) {
    let mut under_way = HashMap::new();
    let error = loop {
        match events.poll().await {
            Ok(event) => note(event, &unsent.0, &mut under_way),
            Err(error) => break error,
        }
    };
    // What came before the end.
    for event in events.state.events.drain(..) {
        note(event, &unsent.0, &mut under_way);
    }
    end.get_or_init(|| said(&error));
}

fn note(event: Event, unsent: &Unsent, under_way: &mut HashMap<u16, Sender<PubAckReason>>) {
    match event {
        Event::Outgoing(Outgoing::Publish(number)) => {
            let first = unsent.queue().as_mut().and_then(VecDeque::pop_front);
            under_way.extend(first.map(|answer| (number, answer)));
        }
        Event::Incoming(Packet::PubAck(ack)) => {
            if let Some(answer) = under_way.remove(&ack.pkid) {
                // If nobody waits any more, so be it.
                let _ = answer.send(ack.reason);
            }
        }
        _ => {}
    }
}

fn said(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionRefused(
            ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized,
        ) => format!("{error}; is the password right?"),
        error => error.to_string(),
    }
}
