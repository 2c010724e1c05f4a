//! A NATS server with one stream.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt as _;
use outbox_sinks::NatsSink;
use tempfile::TempDir;
use testbed::{Program, broker_takes_part, free_port};
use tokio::time::timeout;

use super::{Arrived, Broker};
use crate::patience;

const PROGRAM: &str = "nats-server";
const STREAM: &str = "ORDERS";
/// Whom a server that knows anybody knows.
const USER: &str = "outbox";
const PASSWORD: &str = "p:/@ss%";

pub(crate) struct Nats {
    folder: TempDir,
    port: u16,
    accounts: &'static [&'static str],
    server: Program,
    context: Context,
}

impl Nats {
    async fn with(stream: Config, accounts: &'static [&'static str]) -> Option<Self> {
        if !broker_takes_part("nats", PROGRAM) {
            return None;
        }
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let server = serve(&folder, port, accounts).await;
        let url = format!("nats://127.0.0.1:{port}");
        let client = ConnectOptions::new()
            .user_and_password(USER.to_owned(), PASSWORD.to_owned())
            .reconnect_delay_callback(|_| Duration::from_millis(10))
            .connect(url);
        let context = jetstream::new(client.await.unwrap());
        context.create_stream(stream).await.unwrap();
        Some(Self {
            folder,
            port,
            accounts,
            server,
            context,
        })
    }

    async fn stream(&self) -> Stream {
        self.context.get_stream(STREAM).await.unwrap()
    }
}

fn stream() -> Config {
    Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        ..Config::default()
    }
}

async fn serve(folder: &TempDir, port: u16, accounts: &[&str]) -> Program {
    let data = folder.path().join("data").display().to_string();
    let port_text = port.to_string();
    let arguments = ["-a", "127.0.0.1", "-p", &port_text, "-js", "-sd", &data];
    let arguments = arguments.iter().chain(accounts);
    Program::start(PROGRAM, arguments, [], folder.path(), port).await
}

impl Broker for Nats {
    type Sink = NatsSink;

    async fn start() -> Option<Self> {
        Self::with(stream(), &[]).await
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> NatsSink {
        let sink = NatsSink::to(url, STREAM).subject("orders.{key}");
        sink.timeout(timeout).build().unwrap()
    }

    async fn count(&self) -> usize {
        let info = self.stream().await.cached_info().clone();
        info.state.messages as usize
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let stream = self.stream().await;
        let count = stream.cached_info().state.messages as usize;
        let consumer = stream.create_consumer(OrderedConfig::default());
        let messages = consumer.await.unwrap().messages().await.unwrap();
        let arrived = messages.take(count).map(|message| {
            let message = message.unwrap();
            let headers = message.headers.as_ref().unwrap();
            let text = |name: &str| Some(headers.get(name)?.as_str().to_owned());
            assert_eq!(text("Nats-Msg-Id"), text("ce-id"));
            Arrived::with(text, &message.payload)
        });
        let arrived = timeout(patience(count), arrived.collect()).await;
        arrived.expect("what the stream counts can be read")
    }

    async fn stop(&mut self) {
        self.server.kill();
    }

    async fn start_again(&mut self) {
        self.server = serve(&self.folder, self.port, self.accounts).await;
    }
}

mod tests {
    use async_nats::jetstream::stream::DiscardPolicy;
    use outbox_sinks::{Published, Refusal, Sink as _};

    use super::*;
    use crate::brokers::{certify, keyed, reason};
    use crate::{TIMEOUT, message};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_nats_cannot_take_is_refused_and_what_was_before_it_is_safe() {
        let small = Config {
            max_message_size: 1_000,
            ..stream()
        };
        let Some(broker) = Nats::with(small, &[]).await else {
            return;
        };
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let (mut large, mut header) = (message(), message());
        large.payload = vec![0; 1_000];
        header.headers.insert("x y".to_owned(), "1".to_owned());
        for (bad, expected) in [
            (large.clone(), "bytes with its headers, 1000 are allowed"),
            (keyed("a b"), "no subject \"orders.a b\""),
            (header, "no header \"x y\" with such a name"),
        ] {
            let published = sink.publish(&[message(), bad, message()]).await;
            assert_eq!(published.confirmed, 1);
            assert!(matches!(published.refusal, Some(Refusal::Never { .. })));
            let problem = reason(published);
            assert!(problem.contains(expected), "{problem}");
        }
        // A limit that was raised is noticed on the connection that there is.
        let raised = Config {
            max_message_size: 10_000,
            ..stream()
        };
        broker.context.update_stream(raised).await.unwrap();
        assert_eq!(
            sink.publish(&[large.clone()]).await,
            Published::all(&[large])
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_message_that_would_be_a_command_is_refused_and_not_sent() {
        let Some(broker) = Nats::start().await else {
            return;
        };
        let sink = NatsSink::to(broker.url(), STREAM).subject("{key}");
        let sink = sink.build().unwrap();
        let mut command = keyed(&format!("$JS.API.STREAM.PURGE.{STREAM}"));
        command.payload = Vec::new();
        let messages = [keyed("orders.1"), command, keyed("orders.2")];
        let published = sink.publish(&messages).await;
        assert_eq!(published.confirmed, 1);
        let never = matches!(published.refusal, Some(Refusal::Never { .. }));
        let reason = reason(published);
        assert!(never && reason.contains("is NATS's own"), "{reason}");
        assert_eq!(broker.count().await, 1, "nothing was removed");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_header_of_two_lines_arrives_as_one() {
        let Some(broker) = Nats::start().await else {
            return;
        };
        let mut message = [message()];
        let colour = ("colour".to_owned(), "light\r\nblue".to_owned());
        message[0].headers.extend([colour]);
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        assert_eq!(sink.publish(&message).await, Published::all(&message));
        assert_eq!(
            broker.arrived().await[0].colour.as_deref(),
            Some("light  blue")
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stream_that_refuses_when_it_is_full_refuses_in_order() {
        let full = Config {
            max_messages: 3,
            discard: DiscardPolicy::New,
            ..stream()
        };
        let Some(broker) = Nats::with(full, &[]).await else {
            return;
        };
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let numbered = |id: i64| {
            let mut message = message();
            message.id.0 = id;
            message
        };
        let messages: Vec<_> = (0..6).map(numbered).collect();
        let published = sink.publish(&messages).await;
        assert_eq!(published.confirmed, 3);
        assert!(matches!(published.refusal, Some(Refusal::Later { .. })));
        let problem = reason(published);
        assert!(problem.contains("maximum messages exceeded"), "{problem}");
        broker.stream().await.purge().await.unwrap();
        assert_eq!(
            sink.publish(&messages[3..]).await,
            Published::all(&messages[3..])
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_wrong_with_the_configuration_is_named() {
        let accounts = &["--user", USER, "--pass", PASSWORD];
        let Some(broker) = Nats::with(stream(), accounts).await else {
            return;
        };
        let to = |account: &str, stream: &str, subject: &str| {
            let url = format!("nats://{account}@127.0.0.1:{}", broker.port);
            NatsSink::to(url, stream).subject(subject).build().unwrap()
        };
        let at = |account: &str, stream: &str| to(account, stream, "orders");
        let right = "outbox:p%3A%2F%40ss%25";
        to(right, STREAM, "orders.eu").check().await.unwrap();
        to(right, STREAM, "{queue}").check().await.unwrap();
        for (sink, expected) in [
            (at("outbox:secret", STREAM), "authorization violation"),
            (at(right, "INVOICES"), "the stream \"INVOICES\""),
        ] {
            let problem = sink.check().await.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
            let published = sink.publish(&[message()]).await;
            assert_eq!(published.refusal, Some(Refusal::later(problem)));
        }
        // The stream is there, and takes other subjects.
        let problem = at(right, STREAM).check().await.unwrap_err();
        assert!(
            problem.contains("takes orders.>, not the subject \"orders\""),
            "{problem}"
        );
        let published = at(right, STREAM).publish(&[message()]).await;
        assert!(matches!(published.refusal, Some(Refusal::Later { .. })));
        let problem = reason(published);
        assert!(
            problem.contains("no stream found for given subject: the subject \"orders\""),
            "{problem}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_encrypted_and_the_server_is_who_it_says() {
        if !broker_takes_part("nats", PROGRAM) {
            return;
        }
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        certify(folder.path());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (certificate, key) = (path("certificate.pem"), path("key.pem"));
        let encrypted = ["--tls", "--tlscert", &certificate, "--tlskey", &key];
        let _server = serve(&folder, port, &encrypted).await;
        let url = format!("tls://127.0.0.1:{port}");
        let to = || NatsSink::to(&url, STREAM).subject("orders.{key}");
        let sink = to().root_certificates(&certificate).build().unwrap();
        // It goes first: whoever has no cryptography of his own takes the one that it chooses.
        let problem = sink.check().await.unwrap_err();
        assert!(
            problem.contains(STREAM),
            "there is no stream yet: {problem}"
        );
        let observer = ConnectOptions::new().add_root_certificates(certificate.clone().into());
        let observer = jetstream::new(observer.connect(&url).await.unwrap());
        let mut stored = observer.create_stream(stream()).await.unwrap();
        sink.check().await.unwrap();
        assert_eq!(
            sink.publish(&[message()]).await,
            Published::all(&[message()])
        );
        assert_eq!(stored.info().await.unwrap().state.messages, 1);
        for (sink, expected) in [
            (to(), "certificate"),
            (to().root_certificates("/absent.pem"), "/absent.pem"),
        ] {
            let problem = sink.build().unwrap().check().await.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
