//! What the tests ask of whatever a sink publishes to, and those that there are.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use outbox_sinks::{HttpSink, LinesSink, Sink};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A message as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) payload: Vec<u8>,
    /// The header `colour`.
    pub(crate) colour: Option<String>,
}

/// Whatever a sink publishes to.
pub(crate) trait Broker: Sized + Send {
    type Sink: Sink;

    fn start() -> impl Future<Output = Self> + Send;

    fn sink(&self) -> Self::Sink;

    /// Everything that arrived, in that order.
    fn arrived(&self) -> Vec<Arrived>;

    /// Stops it dead; what arrived stays.
    fn stop(&mut self) -> impl Future<Output = ()> + Send;

    fn start_again(&mut self) -> impl Future<Output = ()> + Send;
}

/// A file that is written to.
pub(crate) struct Lines {
    _folder: TempDir,
    path: PathBuf,
}

impl Broker for Lines {
    type Sink = LinesSink;

    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messages.jsonl");
        Self {
            path,
            _folder: folder,
        }
    }

    fn sink(&self) -> LinesSink {
        LinesSink::file(&self.path).unwrap()
    }

    fn arrived(&self) -> Vec<Arrived> {
        let lines = std::fs::read_to_string(&self.path).unwrap_or_default();
        let arrived = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |value: &Value| value.as_str().map(str::to_owned);
            Arrived {
                key: text(&line["key"]).unwrap(),
                seq: line["seq"].as_i64().unwrap(),
                payload: text(&line["payload"]).unwrap().into_bytes(),
                colour: text(&line["headers"]["colour"]),
            }
        };
        lines.lines().map(arrived).collect()
    }

    /// A file is always there.
    async fn stop(&mut self) {}

    async fn start_again(&mut self) {}
}

/// How the endpoint answers a payload: the status, and whether it says so or hangs up.
type Answers = Arc<Mutex<HashMap<Vec<u8>, Vec<Answer>>>>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Status(u16),
    /// It took the message, and the answer is lost.
    Lost,
}

#[derive(Debug, Clone, Default)]
struct Inbox {
    arrived: Arc<Mutex<Vec<Arrived>>>,
    headers: Arc<Mutex<Vec<HeaderMap>>>,
    answers: Answers,
}

/// An endpoint.
pub(crate) struct Http {
    address: SocketAddr,
    inbox: Inbox,
    server: JoinHandle<()>,
}

impl Http {
    /// Says how a payload is answered, the first times; then it is taken.
    pub(crate) fn answer(&self, payload: &str, answers: &[Answer]) {
        let mut all = self.inbox.answers.lock().unwrap();
        all.insert(payload.into(), answers.iter().rev().copied().collect());
    }

    /// The headers of each request, whatever came of it.
    pub(crate) fn headers(&self) -> Vec<HeaderMap> {
        self.inbox.headers.lock().unwrap().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }
}

async fn take(
    State(inbox): State<Inbox>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Hangup> {
    inbox.headers.lock().unwrap().push(headers.clone());
    let answer = inbox
        .answers
        .lock()
        .unwrap()
        .get_mut(&*body)
        .and_then(Vec::pop);
    if let Some(Answer::Status(status)) = answer {
        return Ok(StatusCode::from_u16(status).unwrap());
    }
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    inbox.arrived.lock().unwrap().push(Arrived {
        key: text("ce-partitionkey").unwrap(),
        seq: text("ce-sequence").unwrap().parse().unwrap(),
        payload: body.to_vec(),
        colour: text("colour"),
    });
    match answer {
        Some(Answer::Lost) => Err(Hangup),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Ends the connection without an answer.
struct Hangup;

impl axum::response::IntoResponse for Hangup {
    fn into_response(self) -> axum::response::Response {
        // A task that panics takes its connection along.
        std::panic::resume_unwind(Box::new("hang up"))
    }
}

async fn serve(address: SocketAddr, inbox: Inbox) -> (SocketAddr, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/in", post(take)).with_state(inbox);
    let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (address, server)
}

impl Broker for Http {
    type Sink = HttpSink;

    async fn start() -> Self {
        let inbox = Inbox::default();
        let (address, server) = serve(([127, 0, 0, 1], 0).into(), inbox.clone()).await;
        Self {
            address,
            inbox,
            server,
        }
    }

    fn sink(&self) -> HttpSink {
        HttpSink::to(self.url()).build().unwrap()
    }

    fn arrived(&self) -> Vec<Arrived> {
        self.inbox.arrived.lock().unwrap().clone()
    }

    async fn stop(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    async fn start_again(&mut self) {
        (_, self.server) = serve(self.address, self.inbox.clone()).await;
    }
}
