//! A RabbitMQ with one exchange and one queue.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_sinks::RabbitMqSink;
use tempfile::TempDir;
use testbed::{Program, broker_takes_part, free_port};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::{Arrived, Broker, certify};
use crate::patience;

/// Not the one on the path, which wants to be somebody else.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const EXCHANGE: &str = "outbox";
const QUEUE: &str = "orders";
/// More than anything in the suite needs, and less than what is too large for it.
const MAX_MESSAGE_SIZE: usize = 100_000;
/// More than partitions in the suite, and few enough to use them all up.
const CHANNELS: usize = 100;

pub(crate) struct RabbitMq {
    folder: TempDir,
    port: u16,
    tls_port: u16,
    internal_port: u16,
    server: Program,
    /// Where nodes find each other. RabbitMQ insists on it, and would leave one of its own behind.
    names: u16,
    _names: Program,
    observer: Mutex<Option<(Connection, Channel)>>,
    arrived: Mutex<Vec<Arrived>>,
}

impl RabbitMq {
    async fn server(folder: &TempDir, [port, tls_port, internal_port, names]: [u16; 4]) -> Program {
        let path = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "max_message_size = {MAX_MESSAGE_SIZE}\n\
             channel_max = {CHANNELS}\n\
             listeners.ssl.1 = 127.0.0.1:{tls_port}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n",
            path("certificate.pem"),
            path("key.pem")
        );
        std::fs::write(path("rabbitmq.conf"), config).unwrap();
        std::fs::write(path("plugins"), "[].").unwrap();
        let variables = [
            ("HOME", path("")),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", names.to_string()),
            // So that what was started is the server itself, and no shell around it.
            ("RABBITMQ_ALLOW_INPUT", "true".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-noinput".to_owned()),
            ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
            ("RABBITMQ_DIST_PORT", internal_port.to_string()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")),
            ("RABBITMQ_FEATURE_FLAGS_FILE", path("flags")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", path("config")),
            ("RABBITMQ_LOGS", "-".to_owned()),
            ("RABBITMQ_LOG_BASE", path("logs")),
            ("RABBITMQ_MNESIA_BASE", path("data")),
            ("RABBITMQ_NODENAME", format!("outbox-{port}@localhost")),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", port.to_string()),
            ("RABBITMQ_PID_FILE", path("pid")),
            ("RABBITMQ_SCHEMA_DIR", path("schema")),
        ];
        let none: [&str; 0] = [];
        Program::start(PROGRAM, none, variables, folder.path(), port).await
    }

    /// A channel to look at it by.
    async fn observe<T>(&self, look: impl AsyncFnOnce(&Channel) -> T) -> T {
        let mut observer = self.observer.lock().await;
        if observer.is_none() {
            let properties = ConnectionProperties::default();
            let connection = Connection::connect(&self.url(), properties).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            *observer = Some((connection, channel));
        }
        let (_, channel) = observer.as_ref().unwrap();
        look(channel).await
    }

    async fn waiting(&self) -> usize {
        self.observe(async |channel| {
            let options = QueueDeclareOptions {
                passive: true,
                ..Default::default()
            };
            let queue = channel.queue_declare(QUEUE.into(), options, FieldTable::default());
            queue.await.unwrap().message_count() as usize
        })
        .await
    }

    async fn declare(&self, exchange: &str) {
        self.observe(async |channel| {
            let options = ExchangeDeclareOptions {
                durable: true,
                ..Default::default()
            };
            let (table, name) = (FieldTable::default, exchange);
            let exchange =
                channel.exchange_declare(name.into(), ExchangeKind::Topic, options, table());
            exchange.await.unwrap();
            let options = QueueDeclareOptions::durable();
            let queue = channel.queue_declare(QUEUE.into(), options, table());
            queue.await.unwrap();
            let (key, options) = ("orders.#".into(), QueueBindOptions::default());
            let bound = channel.queue_bind(QUEUE.into(), name.into(), key, options, table());
            bound.await.unwrap();
        })
        .await;
    }
}

impl Broker for RabbitMq {
    type Sink = RabbitMqSink;

    async fn start() -> Option<Self> {
        if !broker_takes_part("rabbitmq", PROGRAM) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        certify(folder.path());
        let ports @ [port, tls_port, internal_port, names] = [(); 4].map(|()| free_port());
        let arguments = ["-port", &names.to_string(), "-address", "127.0.0.1"];
        let names_folder = folder.path().join("names");
        std::fs::create_dir(&names_folder).unwrap();
        let names_server = Program::start("epmd", arguments, [], &names_folder, names).await;
        let broker = Self {
            server: Self::server(&folder, ports).await,
            folder,
            port,
            tls_port,
            internal_port,
            names,
            _names: names_server,
            observer: Mutex::default(),
            arrived: Mutex::default(),
        };
        broker.declare(EXCHANGE).await;
        Some(broker)
    }

    fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> RabbitMqSink {
        RabbitMqSink::to(url)
            .exchange(EXCHANGE)
            .routing_key("orders.{key}")
            .timeout(timeout)
            .build()
            .unwrap()
    }

    async fn count(&self) -> usize {
        self.arrived.lock().await.len() + self.waiting().await
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let (mut all, waiting) = (self.arrived.lock().await, self.waiting().await);
        self.observe(async |channel| {
            let consumer = channel.basic_consume(
                QUEUE.into(),
                "observer".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            let mut consumer = consumer.await.unwrap().take(waiting);
            let until = Instant::now() + patience(waiting);
            let mut next = async || {
                let next = timeout_at(until, consumer.next()).await;
                next.expect("what the queue counts can be read")
            };
            while let Some(delivery) = next().await {
                let delivery = delivery.unwrap();
                let headers = delivery.properties.headers().as_ref().unwrap().inner();
                let header = |name: &str| {
                    let value = headers.get(name)?.as_long_string()?;
                    Some(value.to_string())
                };
                let identity = delivery.properties.message_id().as_ref().unwrap();
                assert_eq!(header("ce-id").unwrap(), identity.as_str());
                all.push(Arrived::with(header, &delivery.data));
                delivery.ack(BasicAckOptions::default()).await.unwrap();
            }
            let cancelled = channel.basic_cancel("observer".into(), Default::default());
            cancelled.await.unwrap();
        })
        .await;
        all.clone()
    }

    async fn stop(&mut self) {
        *self.observer.lock().await = None;
        self.server.kill();
    }

    async fn start_again(&mut self) {
        let ports = [self.port, self.tls_port, self.internal_port, self.names];
        self.server = Self::server(&self.folder, ports).await;
        // Killed soon after it was told, it may have forgotten what is bound to what. Applications tell it
        // whenever they connect, and so does this one.
        self.declare(EXCHANGE).await;
    }
}

mod tests {
    use outbox_sinks::{Published, Refusal, Sink as _};

    use super::*;
    use crate::brokers::{keyed, reason};
    use crate::{TIMEOUT, message};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_rabbitmq_cannot_take_is_refused_and_what_was_before_it_is_safe() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let (mut headers, mut name) = (message(), message());
        for number in 0..20 {
            headers
                .headers
                .insert(number.to_string(), "x".repeat(8_000));
        }
        name.headers.insert("x".repeat(256), String::new());
        for (bad, expected) in [
            (keyed(&"k".repeat(250)), "the routing key has 257 bytes"),
            (headers, "a frame of the broker has 131072"),
            (name, "the header has 256 bytes"),
        ] {
            let published = sink.publish(&[message(), bad, message()]).await;
            assert_eq!(published.confirmed, 1);
            let never = matches!(published.refusal, Some(Refusal::Never { .. }));
            let reason = reason(published);
            assert!(never && reason.contains(expected), "{reason}");
        }
        assert_eq!(broker.count().await, 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_message_that_the_broker_finds_too_large_is_found_among_others() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let mut large = message();
        large.payload = vec![b'x'; MAX_MESSAGE_SIZE + 1];
        let messages = [message(), large, message()];
        // While others are on their way it is not said whose fault it is.
        let published = sink.publish(&messages).await;
        let later = matches!(published.refusal, Some(Refusal::Later { .. }));
        assert!(later && published.confirmed == 1, "{published:?}");
        let published = sink.publish(&messages[1..2]).await;
        let never = matches!(published.refusal, Some(Refusal::Never { .. }));
        let reason = reason(published);
        assert!(never && reason.contains("PRECONDITION_FAILED"), "{reason}");
        assert_eq!(broker.count().await, 1, "none overtook it");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_no_queue_takes_is_not_delivered_and_not_overtaken() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let sink = RabbitMqSink::to(broker.url())
            .exchange(EXCHANGE)
            .routing_key("{key}")
            .build()
            .unwrap();
        let messages = [keyed("orders.1"), keyed("invoices"), keyed("orders.2")];
        for _ in 0..2 {
            let published = sink.publish(&messages).await;
            assert_eq!(published.confirmed, 1);
            let reason = reason(published);
            let expected = "exchange \"outbox\" has no queue for routing key \"invoices\" \
                            (312 NO_ROUTE)";
            assert!(reason.contains(expected), "{reason}");
        }
        assert_eq!(broker.count().await, 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_wrong_with_the_configuration_is_named() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let at = |account: &str| {
            let port = broker.port;
            RabbitMqSink::to(format!("amqp://{account}@127.0.0.1:{port}/%2f"))
        };
        let right = at("guest:guest").exchange(EXCHANGE).build().unwrap();
        right.check().await.unwrap();
        let direct = at("guest:guest").routing_key(QUEUE).build().unwrap();
        direct.check().await.unwrap();
        for (sink, expected) in [
            (at("guest:secret").exchange(EXCHANGE), "ACCESS_REFUSED"),
            (
                at("guest:guest").exchange("invoices"),
                "no exchange 'invoices'",
            ),
            (
                at("guest:guest").routing_key("invoices"),
                "no queue 'invoices'",
            ),
        ] {
            let problem = sink.build().unwrap().check().await.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
        let lost = at("guest:guest").exchange("invoices").build().unwrap();
        let reason = reason(lost.publish(&[message()]).await);
        assert!(reason.contains("no exchange 'invoices'"), "{reason}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_encrypted_and_the_broker_is_who_it_says() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let url = format!("amqps://guest:guest@127.0.0.1:{}/%2f", broker.tls_port);
        let to = || RabbitMqSink::to(&url).routing_key(QUEUE);
        let trusting = to().root_certificates(broker.folder.path().join("certificate.pem"));
        let sink = trusting.build().unwrap();
        sink.check().await.unwrap();
        assert_eq!(
            sink.publish(&[message()]).await,
            Published::all(&[message()])
        );
        assert_eq!(broker.count().await, 1);
        let problem = to().build().unwrap().check().await.unwrap_err();
        assert!(problem.contains("certificate"), "{problem}");
        let absent = to().root_certificates("/absent.pem").build().unwrap();
        let problem = absent.check().await.unwrap_err();
        assert!(problem.contains("/absent.pem"), "{problem}");
    }

    /// G8: a channel that the broker closes costs its number, and there are not many.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_exchange_that_comes_late_is_found_after_any_number_of_attempts() {
        let Some(broker) = RabbitMq::start().await else {
            return;
        };
        let sink = RabbitMqSink::to(broker.url()).exchange("late");
        let sink = sink.routing_key("orders.{key}").build().unwrap();
        for _ in 0..2 * CHANNELS {
            let reason = reason(sink.publish(&[keyed("a")]).await);
            assert!(reason.contains("late"), "{reason}");
        }
        broker.declare("late").await;
        // What was said before may be said once more.
        let mut published = sink.publish(&[keyed("a")]).await;
        if published.confirmed == 0 {
            published = sink.publish(&[keyed("a")]).await;
        }
        assert_eq!(published, Published::all(&[keyed("a")]));
        assert_eq!(broker.count().await, 1);
    }
}
