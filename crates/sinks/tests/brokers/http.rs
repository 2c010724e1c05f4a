//! An endpoint that answers as it is told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use outbox_sinks::HttpSink;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Arrived, Broker};

/// How long a kill waits for a request that it can find under way. There may be none.
const MOMENT: Duration = Duration::from_secs(1);
/// A long run has more requests than anybody looks at.
const REMEMBERED: usize = 100;

/// How the endpoint answers a payload, the last answer first.
type Answers = Arc<Mutex<HashMap<Vec<u8>, Vec<Answer>>>>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Status(u16),
    /// A status, and the seconds after which to come again.
    Later(u16, u64),
    /// It took the message, and the answer is lost.
    Lost,
}

/// A request as it came, whatever came of it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) at: Instant,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug, Clone, Default)]
struct Inbox {
    arrived: Arc<Mutex<Vec<Arrived>>>,
    requests: Arc<Mutex<Vec<Request>>>,
    answers: Answers,
    /// How many messages were taken and not answered, while none is.
    unanswered: Arc<watch::Sender<Option<usize>>>,
}

/// An endpoint.
pub(crate) struct Http {
    address: SocketAddr,
    inbox: Inbox,
    tls: Option<TlsAcceptor>,
    server: JoinHandle<()>,
}

impl Http {
    async fn with(tls: Option<TlsAcceptor>) -> Self {
        let inbox = Inbox::default();
        let anywhere = ([127, 0, 0, 1], 0).into();
        let (address, server) = serve(anywhere, inbox.clone(), tls.clone()).await;
        Self {
            address,
            inbox,
            tls,
            server,
        }
    }

    /// Says how a payload is answered, the first times; then it is taken.
    pub(crate) fn answer(&self, payload: &str, answers: &[Answer]) {
        let mut all = self.inbox.answers.lock().unwrap();
        all.insert(payload.into(), answers.iter().rev().copied().collect());
    }

    /// The first requests.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.inbox.requests.lock().unwrap().clone()
    }

    /// From now on messages are taken and not answered, so that a kill finds their requests under way.
    fn answer_nobody(&self) {
        self.inbox.unanswered.send_replace(Some(0));
    }

    /// Waits until a message was taken and not answered.
    async fn taken_unanswered(&self) {
        let mut unanswered = self.inbox.unanswered.subscribe();
        let some = unanswered.wait_for(|count| *count > Some(0));
        some.await.unwrap();
    }

    /// Resets all connections, whatever they are at, and listens no more.
    async fn kill(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
        self.inbox.unanswered.send_replace(None);
    }
}

async fn take(
    State(inbox): State<Inbox>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Hangup> {
    remember(&inbox, &headers, &body);
    let answer = inbox
        .answers
        .lock()
        .unwrap()
        .get_mut(&*body)
        .and_then(Vec::pop);
    let status = |status| StatusCode::from_u16(status).unwrap();
    match answer {
        Some(Answer::Status(code)) => return Ok(status(code).into_response()),
        Some(Answer::Later(code, seconds)) => {
            let after = [(header::RETRY_AFTER, seconds.to_string())];
            return Ok((status(code), after).into_response());
        }
        Some(Answer::Lost) | None => {}
    }
    let arrived = arrived(&headers, &body);
    inbox.arrived.lock().unwrap().push(arrived);
    let is_unanswered = inbox.unanswered.send_if_modified(|unanswered| {
        *unanswered = unanswered.map(|count| count + 1);
        unanswered.is_some()
    });
    if is_unanswered {
        std::future::pending::<()>().await;
    }
    match answer {
        Some(Answer::Lost) => Err(Hangup),
        _ => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

fn remember(inbox: &Inbox, headers: &HeaderMap, body: &Bytes) {
    let mut requests = inbox.requests.lock().unwrap();
    if requests.len() < REMEMBERED {
        requests.push(Request {
            at: Instant::now(),
            headers: headers.clone(),
            body: body.clone(),
        });
    }
}

/// A message, whose attributes are headers or in the body.
fn arrived(headers: &HeaderMap, body: &[u8]) -> Arrived {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    if text("content-type").as_deref() != Some("application/cloudevents+json") {
        return Arrived::with(text, body);
    }
    let event: Value = serde_json::from_slice(body).unwrap();
    let attribute = |name: &str| match name.strip_prefix("ce-") {
        Some(attribute) => Some(event[attribute].as_str()?.to_owned()),
        None => text(name),
    };
    Arrived::with(attribute, event["data"].to_string().as_bytes())
}

/// Ends the connection without an answer.
struct Hangup;

impl IntoResponse for Hangup {
    fn into_response(self) -> Response {
        // A task that panics takes its connection along.
        std::panic::resume_unwind(Box::new("hang up"))
    }
}

async fn serve(
    address: SocketAddr,
    inbox: Inbox,
    tls: Option<TlsAcceptor>,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/in", post(take)).with_state(inbox);
    let server = async move {
        // They end with the server, in the middle of whatever they are at.
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Whoever is dropped says no farewell.
            stream.set_zero_linger().unwrap();
            connections.spawn(attend(stream, routes.clone(), tls.clone()));
            while connections.try_join_next().is_some() {}
        }
    };
    (address, tokio::spawn(server))
}

/// Answers on a connection until it ends, however that comes.
async fn attend(stream: TcpStream, routes: Router, tls: Option<TlsAcceptor>) {
    let (http, service) = (http1::Builder::new(), TowerToHyperService::new(routes));
    let _ = match tls {
        None => http.serve_connection(TokioIo::new(stream), service).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
            // A client that does not trust it.
            Err(_) => return,
        },
    };
}

/// Speaks TLS with the certificate in a folder.
fn acceptor(folder: &Path) -> TlsAcceptor {
    let certificates = CertificateDer::pem_file_iter(folder.join("certificate.pem")).unwrap();
    let certificates = certificates.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key);
    TlsAcceptor::from(Arc::new(config.unwrap()))
}

impl Broker for Http {
    type Sink = HttpSink;

    async fn start() -> Option<Self> {
        Some(Self::with(None).await)
    }

    fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/in", self.address)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> HttpSink {
        HttpSink::to(url).timeout(timeout).build().unwrap()
    }

    async fn count(&self) -> usize {
        self.inbox.arrived.lock().unwrap().len()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.inbox.arrived.lock().unwrap().clone()
    }

    /// With requests under way, where there are any.
    async fn stop(&mut self) {
        self.answer_nobody();
        let _ = timeout(MOMENT, self.taken_unanswered()).await;
        self.kill().await;
    }

    async fn start_again(&mut self) {
        (_, self.server) = serve(self.address, self.inbox.clone(), self.tls.clone()).await;
    }
}

mod tests {
    use outbox::{DeadLetterFilter, EnqueueMessage};
    use outbox_sinks::{CloudEventMode, Published, Refusal, Sink as _};
    use serde_json::json;

    use super::*;
    use crate::brokers::{certify, reason};
    use crate::message;
    use crate::source::Source;

    const PATIENCE: Duration = Duration::from_secs(10);
    /// Longer than anybody waits here.
    const FOREVER: Duration = Duration::from_secs(3_600);

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
        let headers = broker.requests().remove(0).headers;
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_structured_event_has_everything_in_its_body() {
        let broker = Http::start().await.unwrap();
        let sink = HttpSink::to(broker.url()).mode(CloudEventMode::Structured);
        let source = Source::to(sink.source("/shop").build().unwrap()).await;
        let placed = EnqueueMessage::keyed("ž 1", r#"{"b":1.0,"a":[]}"#, "order.placed")
            .header("colour", "blue");
        let picture = EnqueueMessage::keyed("ž 1", vec![0, 255], "order.pictured")
            .header("content-type", "image/png");
        source.enqueue(&[placed, picture]).await;
        source.settled(2).await;
        let requests = broker.requests();
        let [first, second] = &*requests else {
            panic!("{requests:?}")
        };
        let event = |request: &Request| {
            let media_type = "application/cloudevents+json";
            assert_eq!(request.headers["content-type"], media_type);
            // Nothing is said twice: a receiver that looks at headers takes the event for a binary one.
            let is_attribute = |name: &HeaderName| name.as_str().starts_with("ce-");
            assert!(!request.headers.keys().any(is_attribute), "{request:?}");
            let event: Value = serde_json::from_slice(&request.body).unwrap();
            let identity = request.headers["idempotency-key"].to_str().unwrap();
            assert_eq!(event["id"], identity);
            event
        };
        assert_eq!(first.headers["colour"], "blue");
        let body = String::from_utf8(first.body.to_vec()).unwrap();
        assert!(body.ends_with(r#","data":{"b":1.0,"a":[]}}"#), "{body}");
        let placed = event(first);
        for (attribute, expected) in [
            ("specversion", "1.0"),
            ("source", "/shop"),
            ("type", "order.placed"),
            ("datacontenttype", "application/json"),
            ("sequence", "0000000000000000001"),
            ("queue", "orders"),
            ("partitionkey", "ž 1"),
        ] {
            assert_eq!(placed[attribute], expected, "{attribute}");
        }
        let picture = event(second);
        assert_eq!(picture["data_base64"], json!("AP8="));
        assert_eq!(picture["datacontenttype"], "image/png");
        assert_eq!(picture.get("data"), None);
        source.handle.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_endpoint_that_asks_for_time_is_given_it() {
        let broker = Http::start().await.unwrap();
        broker.answer("1", &[Answer::Later(429, 1), Answer::Later(503, 2)]);
        let source = Source::to(broker.sink_at(&broker.url(), PATIENCE)).await;
        let messages = ["1", "2"].map(|text| EnqueueMessage::keyed("k", text, "t"));
        source.enqueue(&messages).await;
        source.settled(2).await;
        let requests = broker.requests();
        let bodies: Vec<_> = requests.iter().map(|request| &*request.body).collect();
        assert_eq!(bodies, [b"1", b"1", b"1", b"2"]);
        // The backoff alone is a fifth of a second at most.
        for (place, seconds) in [(0, 1), (1, 2)] {
            let waited = requests[place + 1].at - requests[place].at;
            assert!(waited >= Duration::from_secs(seconds), "{waited:?}");
        }
        source.handle.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_kill_resets_what_is_under_way_and_the_message_comes_again() {
        let mut broker = Http::start().await.unwrap();
        // Nothing but the end of the connection ends the request.
        let sink = broker.sink_at(&broker.url(), FOREVER);
        broker.answer_nobody();
        let messages = [message()];
        let kill = async {
            broker.taken_unanswered().await;
            broker.kill().await;
        };
        let both = async { tokio::join!(sink.publish(&messages), kill) };
        let (published, ()) = timeout(6 * PATIENCE, both).await.unwrap();
        let later = matches!(published.refusal, Some(Refusal::Later { .. }));
        assert!(later && published.confirmed == 0, "{published:?}");
        let reason = reason(published);
        assert!(reason.contains("reset"), "{reason}");
        assert_eq!(broker.count().await, 1, "it was taken, and nobody knows");
        broker.start_again().await;
        assert_eq!(sink.publish(&messages).await, Published::all(&messages));
        assert_eq!(broker.count().await, 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_encrypted_and_the_endpoint_is_who_it_says() {
        let folder = tempfile::tempdir().unwrap();
        certify(folder.path());
        let broker = Http::with(Some(acceptor(folder.path()))).await;
        let certificate = folder.path().join("certificate.pem");
        let to = || HttpSink::to(broker.url()).timeout(PATIENCE);
        let sink = to().root_certificates(&certificate).build().unwrap();
        sink.check().await.unwrap();
        assert_eq!(broker.requests().len(), 0, "a look is no message");
        assert_eq!(
            sink.publish(&[message()]).await,
            Published::all(&[message()])
        );
        assert_eq!(broker.count().await, 1);
        std::fs::write(folder.path().join("empty.pem"), "").unwrap();
        for (sink, expected) in [
            (to(), "certificate"),
            (to().root_certificates("/absent.pem"), "/absent.pem"),
            (
                to().root_certificates(folder.path().join("empty.pem")),
                "empty.pem: there is no certificate in it",
            ),
        ] {
            let sink = sink.build().unwrap();
            let problem = sink.check().await.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
            let published = sink.publish(&[message()]).await;
            let later = matches!(published.refusal, Some(Refusal::Later { .. }));
            let reason = reason(published);
            assert!(later && reason.contains(expected), "{reason}");
        }
        assert_eq!(broker.count().await, 1, "it goes to nobody else");
    }
}
