//! An endpoint that answers as it is told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use outbox_sinks::HttpSink;
use tokio::task::JoinHandle;

use super::{Arrived, Broker};

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
    let arrived = Arrived::with(text, &body);
    inbox.arrived.lock().unwrap().push(arrived);
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

    async fn start() -> Option<Self> {
        let inbox = Inbox::default();
        let (address, server) = serve(([127, 0, 0, 1], 0).into(), inbox.clone()).await;
        Some(Self {
            address,
            inbox,
            server,
        })
    }

    fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> HttpSink {
        HttpSink::to(url).timeout(timeout).build().unwrap()
    }

    async fn arrived(&self) -> Vec<Arrived> {
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

mod tests {
    use outbox::{DeadLetterFilter, EnqueueMessage};

    use super::*;
    use crate::source::Source;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_endpoint_decides_what_becomes_of_a_message() {
        use Answer::{Lost, Status};
        let broker = Http::start().await.unwrap();
        broker.answer("1", &[Status(500), Status(404), Status(429)]);
        broker.answer("2", &[Status(422)]);
        broker.answer("3", &[Lost]);
        let source = Source::to(broker.sink_at(&broker.url(), PATIENCE)).await;
        let message = |text: &str| EnqueueMessage::keyed("k", text, "t");
        let messages = ["0", "1", "2", "3", "4"].map(message);
        source.enqueue(&messages).await;
        source.settled(5).await;
        let arrived = broker.arrived().await;
        let payloads: Vec<_> = arrived.iter().map(|one| &*one.payload).collect();
        // What was taken, and whose answer was lost, comes again.
        assert_eq!(payloads, [b"0", b"1", b"3", b"3", b"4"]);
        let all = DeadLetterFilter::new();
        let buried = source.handle.outbox().dead_letter_list(&all).await.unwrap();
        assert_eq!(buried.len(), 1);
        assert_eq!(buried[0].payload, b"2");
        assert_eq!(
            buried[0].last_error,
            "the endpoint answered 422 Unprocessable Entity"
        );
        source.handle.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_carry_what_receivers_ask_for() {
        let broker = Http::start().await.unwrap();
        let sink = HttpSink::to(broker.url())
            .header("Authorization", "Bearer secret")
            .signed_with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .build()
            .unwrap();
        let source = Source::to(sink).await;
        let message = EnqueueMessage::keyed("k", "{}", "order.placed")
            .header(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
            .header("authorization", "of the message")
            .header("content-type", "application/vnd.order+json");
        source.enqueue(&[message]).await;
        source.settled(1).await;
        let headers = broker.headers().remove(0);
        let id = headers["idempotency-key"].to_str().unwrap();
        assert_eq!(headers["ce-id"], id);
        assert_eq!(headers["webhook-id"], id);
        assert!(
            headers["webhook-signature"]
                .to_str()
                .unwrap()
                .starts_with("v1,")
        );
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(headers["content-type"], "application/vnd.order+json");
        assert!(headers.contains_key("traceparent"));
        source.handle.stop().await;
    }
}
