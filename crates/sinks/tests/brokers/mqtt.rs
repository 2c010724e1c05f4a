//! A mosquitto, and somebody who has subscribed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_sinks::MqttSink;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::Packet;
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use tempfile::TempDir;
use testbed::{Program, broker_takes_part, free_port};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Arrived, Broker};
use crate::{PATIENCE, patience};

const PROGRAM: &str = "mosquitto";
/// Everything stays for a subscriber that is away, however much it is.
const CONFIG: &str = "persistence true\nmax_queued_messages 0\nmax_packet_size 100000\nuser root\n";
/// What a subscriber is sent behind everything else.
const MARK: &str = "marks";

pub(crate) struct Mqtt {
    folder: TempDir,
    port: u16,
    access: &'static str,
    server: Program,
    subscriber: AsyncClient,
    seen: watch::Receiver<Seen>,
    marks: AtomicU64,
    reader: JoinHandle<()>,
}

/// What the subscriber has been sent.
#[derive(Debug, Default)]
struct Seen {
    arrived: Vec<Arrived>,
    is_subscribed: bool,
    mark: u64,
}

impl Mqtt {
    async fn with(access: &'static str) -> Option<Self> {
        if !broker_takes_part("mqtt", PROGRAM) {
            return None;
        }
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let server = serve(&folder, port, access).await;
        let mut options = MqttOptions::new("observer", "127.0.0.1", port);
        options
            .set_credentials("observer", "")
            .set_clean_start(false)
            .set_session_expiry_interval(Some(3_600))
            .set_max_packet_size(Some(1_000_000));
        let (subscriber, events) = AsyncClient::new(options, 10);
        for topic in ["orders/#", MARK] {
            let subscribed = subscriber.subscribe(topic, QoS::AtLeastOnce);
            subscribed.await.unwrap();
        }
        let (tell, mut seen) = watch::channel(Seen::default());
        let reader = tokio::spawn(read(events, Arc::new(tell)));
        let subscribed = seen.wait_for(|seen| seen.is_subscribed);
        let subscribed = timeout(PATIENCE, subscribed).await;
        drop(subscribed.expect("the subscriber subscribes").unwrap());
        Some(Self {
            folder,
            port,
            access,
            server,
            subscriber,
            seen,
            marks: AtomicU64::new(0),
            reader,
        })
    }
}

impl Drop for Mqtt {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Notes what comes, also after the broker was away.
async fn read(mut events: EventLoop, seen: Arc<watch::Sender<Seen>>) {
    let mut subscribed = 0;
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::SubAck(_))) => {
                subscribed += 1;
                seen.send_modify(|seen| seen.is_subscribed = subscribed == 2);
            }
            Ok(Event::Incoming(Packet::Publish(message))) if message.topic == MARK => {
                let mark = std::str::from_utf8(&message.payload).unwrap();
                let mark = mark.parse().unwrap();
                seen.send_modify(|seen| seen.mark = seen.mark.max(mark));
            }
            Ok(Event::Incoming(Packet::Publish(message))) => {
                let headers = message.properties.unwrap().user_properties;
                let header = |name: &str| {
                    let (_, value) = headers.iter().find(|(header, _)| header == name)?;
                    Some(value.clone())
                };
                let arrived = Arrived::with(header, &message.payload);
                seen.send_modify(|seen| seen.arrived.push(arrived));
            }
            Ok(_) => {}
            // The next poll connects again.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(folder: &TempDir, port: u16, access: &str) -> Program {
    let path = folder.path().join("mosquitto.conf");
    let data = folder.path().display();
    let config = format!(
        "listener {port} 127.0.0.1\nset_tcp_nodelay true\npersistence_location {data}/\n{CONFIG}{access}"
    );
    std::fs::write(&path, config).unwrap();
    let arguments = ["-c".into(), path.into_os_string()];
    Program::start(PROGRAM, arguments, [], folder.path(), port).await
}

impl Broker for Mqtt {
    type Sink = MqttSink;

    async fn start() -> Option<Self> {
        Self::with("allow_anonymous true\n").await
    }

    fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> MqttSink {
        let sink = MqttSink::to(url).topic("orders/{key}").timeout(timeout);
        sink.build().unwrap()
    }

    async fn count(&self) -> usize {
        self.seen.borrow().arrived.len()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let mark = self.marks.fetch_add(1, Ordering::Relaxed) + 1;
        let marked = self
            .subscriber
            .publish(MARK, QoS::AtLeastOnce, false, mark.to_string());
        marked.await.unwrap();
        let mut seen = self.seen.clone();
        let patience = patience(self.count().await);
        let marked = timeout(patience, seen.wait_for(|seen| seen.mark >= mark)).await;
        let seen = marked.expect("the mark comes behind everything else");
        seen.unwrap().arrived.clone()
    }

    /// It writes down what waits when it is asked to end, and only then.
    async fn stop(&mut self) {
        self.server.end();
    }

    async fn start_again(&mut self) {
        self.server = serve(&self.folder, self.port, self.access).await;
    }
}

mod tests {
    use outbox_sinks::{Published, Refusal, Sink as _};

    use super::*;
    use crate::brokers::{certify, keyed, reason};
    use crate::{TIMEOUT, message};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_mqtt_cannot_take_is_refused_and_what_was_before_it_is_safe() {
        let Some(broker) = Mqtt::start().await else {
            return;
        };
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let (mut large, mut header) = (message(), message());
        large.payload = vec![0; 100_000];
        header.headers.insert("x\n".to_owned(), String::new());
        for (bad, expected) in [
            (large, "bytes, the broker takes 100000"),
            (keyed("a+b"), "the topic \"orders/a+b\" is none"),
            (keyed("a\nb"), "contains control characters"),
            (header, "the header \"x\\n\" contains control characters"),
        ] {
            let published = sink.publish(&[message(), bad, message()]).await;
            assert_eq!(published.confirmed, 1);
            let never = matches!(published.refusal, Some(Refusal::Never { .. }));
            let reason = reason(published);
            assert!(never && reason.contains(expected), "{reason}");
        }
        let mut lines = message();
        lines
            .headers
            .insert("colour".to_owned(), "light\nblue".to_owned());
        let published = sink.publish(std::slice::from_ref(&lines)).await;
        assert_eq!(published.confirmed, 1);
        let arrived = broker.arrived().await;
        assert_eq!(arrived.len(), 5);
        assert_eq!(arrived[4].colour.as_deref(), Some("light blue"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_nobody_has_subscribed_to_is_not_delivered_and_not_overtaken() {
        let Some(broker) = Mqtt::start().await else {
            return;
        };
        let messages = [keyed("orders/1"), keyed("invoices"), keyed("orders/2")];
        let sink = || MqttSink::to(broker.url()).topic("{key}");
        let strict = sink().build().unwrap();
        for _ in 0..2 {
            let published = strict.publish(&messages).await;
            assert_eq!(published.confirmed, 1);
            let reason = reason(published);
            assert!(reason.contains("nobody has subscribed"), "{reason}");
        }
        assert_eq!(broker.arrived().await.len(), 2);
        let free = sink().mandatory(false).build().unwrap();
        assert_eq!(free.publish(&messages).await, Published::all(&messages));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_wrong_with_the_configuration_is_named() {
        let access = "allow_anonymous false\n";
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        if !broker_takes_part("mqtt", PROGRAM) {
            return;
        }
        let _server = serve(&folder, port, access).await;
        let url = format!("mqtt://outbox:secret@127.0.0.1:{port}");
        let sink = MqttSink::to(url).build().unwrap();
        let problem = sink.check().await.unwrap_err();
        assert!(problem.contains("is the password right?"), "{problem}");
        assert!(!problem.contains("secret"), "{problem}");
        let published = sink.publish(&[message()]).await;
        assert_eq!(published.refusal, Some(Refusal::later(problem)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_topic_that_is_not_allowed_stops_the_partition() {
        let access = "allow_anonymous true\nacl_file access\n";
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        if !broker_takes_part("mqtt", PROGRAM) {
            return;
        }
        std::fs::write(folder.path().join("access"), "topic write orders/#\n").unwrap();
        let _server = serve(&folder, port, access).await;
        let sink = MqttSink::to(format!("mqtt://127.0.0.1:{port}"));
        let sink = sink.topic("{key}").mandatory(false).build().unwrap();
        let messages = [keyed("orders/1"), keyed("invoices"), keyed("orders/2")];
        let published = sink.publish(&messages).await;
        assert_eq!(published.confirmed, 1);
        let reason = reason(published);
        assert!(reason.contains("NotAuthorized"), "{reason}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_encrypted_and_the_broker_is_who_it_says() {
        let access = "allow_anonymous true\ncertfile certificate.pem\nkeyfile key.pem\n";
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        if !broker_takes_part("mqtt", PROGRAM) {
            return;
        }
        certify(folder.path());
        let _server = serve(&folder, port, access).await;
        let to = || MqttSink::to(format!("mqtts://127.0.0.1:{port}")).mandatory(false);
        let trusting = to().root_certificates(folder.path().join("certificate.pem"));
        let sink = trusting.build().unwrap();
        sink.check().await.unwrap();
        assert_eq!(
            sink.publish(&[message()]).await,
            Published::all(&[message()])
        );
        let problem = to().build().unwrap().check().await.unwrap_err();
        assert!(problem.contains("certificate"), "{problem}");
        let absent = to().root_certificates("/absent.pem").build().unwrap();
        let problem = absent.check().await.unwrap_err();
        assert!(problem.contains("/absent.pem"), "{problem}");
    }
}
