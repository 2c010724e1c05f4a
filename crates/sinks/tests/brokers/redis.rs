//! A Redis that writes everything down before it answers.

use std::collections::HashMap;
use std::time::Duration;

use outbox_sinks::RedisSink;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use redis::{AsyncCommands as _, AsyncConnectionConfig, Client, RedisResult};
use tempfile::TempDir;
use testbed::{Program, broker_takes_part, free_port};
use tokio::time::Instant;

use super::{Arrived, Broker};
use crate::{GLANCE, PATIENCE};

const PROGRAM: &str = "redis-server";
const STREAM: &str = "orders";

pub(crate) struct Redis {
    folder: TempDir,
    port: u16,
    options: &'static [&'static str],
    server: Program,
}

impl Redis {
    async fn with(options: &'static [&'static str]) -> Option<Self> {
        if !broker_takes_part("redis", PROGRAM) {
            return None;
        }
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let server = serve(&folder, port, options).await;
        Some(Self {
            folder,
            port,
            options,
            server,
        })
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let client = Client::open(self.url())?;
        client
            .get_multiplexed_async_connection_with_config(&patient)
            .await
    }

    async fn client(&self) -> MultiplexedConnection {
        self.connect().await.unwrap()
    }
}

async fn serve(folder: &TempDir, port: u16, options: &[&str]) -> Program {
    let data = folder.path().display().to_string();
    let port_text = port.to_string();
    let arguments = [
        ["--bind", "127.0.0.1"],
        ["--port", &port_text],
        ["--dir", &data],
        ["--save", ""],
        ["--appendonly", "yes"],
        ["--appendfsync", "always"],
    ];
    let arguments = arguments.as_flattened().iter().chain(options);
    Program::start(PROGRAM, arguments, [], folder.path(), port).await
}

impl Broker for Redis {
    type Sink = RedisSink;

    async fn start() -> Option<Self> {
        Self::with(&[]).await
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> RedisSink {
        let sink = RedisSink::to(url).stream(STREAM).max_length(1_000_000);
        sink.timeout(timeout).build().unwrap()
    }

    async fn count(&self) -> usize {
        self.client().await.xlen(STREAM).await.unwrap()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let entries: StreamRangeReply = self.client().await.xrange_all(STREAM).await.unwrap();
        let arrived = entries.ids.into_iter().map(|entry| {
            let fields: HashMap<_, Vec<u8>> = entry
                .map
                .into_iter()
                .map(|(name, value)| (name, redis::from_redis_value(value).unwrap()))
                .collect();
            let text = |name: &str| Some(String::from_utf8(fields.get(name)?.clone()).unwrap());
            Arrived::with(text, &fields["ce-data"])
        });
        arrived.collect()
    }

    async fn stop(&mut self) {
        self.server.kill();
    }

    async fn start_again(&mut self) {
        self.server = serve(&self.folder, self.port, self.options).await;
        // It listens before it has read what it wrote.
        let ping = async || {
            let mut client = self.connect().await?;
            redis::cmd("PING").query_async::<String>(&mut client).await
        };
        let until = Instant::now() + PATIENCE;
        while let Err(error) = ping().await {
            assert!(Instant::now() < until, "Redis is not ready: {error}");
            tokio::time::sleep(GLANCE).await;
        }
    }
}

mod tests {
    use outbox_sinks::{Published, Refusal, Sink as _};

    use super::*;
    use crate::brokers::{certify, keyed, reason};
    use crate::message;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_window_stops_at_the_first_that_is_refused() {
        let Some(broker) = Redis::start().await else {
            return;
        };
        let mut client = broker.client().await;
        let () = client.set("b", "not a stream").await.unwrap();
        let sink = RedisSink::to(broker.url()).stream("{key}").build().unwrap();
        let messages = ["a", "a", "b", "c"].map(keyed);
        let published = sink.publish(&messages).await;
        assert_eq!(published.confirmed, 2);
        assert!(matches!(published.refusal, Some(Refusal::Later { .. })));
        let problem = reason(published);
        assert!(problem.contains("WRONGTYPE"), "{problem}");
        let () = client.del("b").await.unwrap();
        assert_eq!(
            sink.publish(&messages[2..]).await,
            Published::all(&messages[2..])
        );
        let lengths = ["a", "b", "c"].map(|stream| (stream, client.clone()));
        for ((stream, mut client), expected) in lengths.into_iter().zip([2, 1, 1]) {
            let length: usize = client.xlen(stream).await.unwrap();
            assert_eq!(length, expected, "{stream}");
        }
        let mut keyless = message();
        keyless.key = None;
        let published = sink.publish(&[keyed("a"), keyless, keyed("a")]).await;
        assert_eq!(published.confirmed, 1);
        assert!(matches!(published.refusal, Some(Refusal::Never { .. })));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stream_is_as_long_as_it_may_be_and_large_windows_are_cut() {
        let Some(broker) = Redis::start().await else {
            return;
        };
        let sink = RedisSink::to(broker.url()).stream(STREAM).max_length(100);
        let sink = sink.build().unwrap();
        let mut large = message();
        large.payload = vec![0; 400_000];
        let messages = vec![large; 10];
        assert_eq!(sink.publish(&messages).await, Published::all(&messages));
        assert_eq!(broker.count().await, 10);
        let messages = vec![message(); 1_000];
        assert_eq!(sink.publish(&messages).await, Published::all(&messages));
        // About: Redis removes whole blocks of a hundred.
        let count = broker.count().await;
        assert!((100..=200).contains(&count), "{count}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_wrong_with_the_configuration_is_named() {
        let Some(broker) = Redis::with(&["--requirepass", "right"]).await else {
            return;
        };
        let at = |password: &str, stream: &str| {
            let url = format!("redis://:{password}@127.0.0.1:{}", broker.port);
            RedisSink::to(url).stream(stream).build().unwrap()
        };
        at("right", STREAM).check().await.unwrap();
        let wrong = at("wrong", STREAM);
        let problem = wrong.check().await.unwrap_err();
        assert!(problem.contains("assword"), "{problem}");
        assert!(!problem.contains("wrong"), "{problem}");
        assert_eq!(reason(wrong.publish(&[message()]).await), problem);
        let client = Client::open(format!("redis://:right@127.0.0.1:{}", broker.port)).unwrap();
        let mut client = client.get_multiplexed_async_connection().await.unwrap();
        let () = client.set(STREAM, "not a stream").await.unwrap();
        let problem = at("right", STREAM).check().await.unwrap_err();
        assert_eq!(problem, "Redis: \"orders\" is a string, not a stream");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_encrypted_and_the_server_is_who_it_says() {
        if !broker_takes_part("redis", PROGRAM) {
            return;
        }
        let (folder, port, encrypted_port) =
            (tempfile::tempdir().unwrap(), free_port(), free_port());
        certify(folder.path());
        let certificate = folder.path().join("certificate.pem");
        let options = [
            ["--tls-port", &encrypted_port.to_string()],
            ["--tls-cert-file", "certificate.pem"],
            ["--tls-key-file", "key.pem"],
            ["--tls-ca-cert-file", "certificate.pem"],
            ["--tls-auth-clients", "no"],
        ];
        let _server = serve(&folder, port, options.as_flattened()).await;
        let url = format!("rediss://127.0.0.1:{encrypted_port}");
        let to = || RedisSink::to(&url).stream(STREAM);
        let sink = to().root_certificates(&certificate).build().unwrap();
        sink.check().await.unwrap();
        assert_eq!(
            sink.publish(&[message()]).await,
            Published::all(&[message()])
        );
        let client = Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut client = client.get_multiplexed_async_connection().await.unwrap();
        let length: usize = client.xlen(STREAM).await.unwrap();
        assert_eq!(length, 1);
        for (sink, expected) in [
            (to(), "certificate"),
            (to().root_certificates("/absent.pem"), "/absent.pem"),
        ] {
            let problem = sink.build().unwrap().check().await.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
