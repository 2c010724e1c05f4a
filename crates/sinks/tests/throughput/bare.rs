//! Clients without an outbox: a window under way, and the next message when the first of them is acknowledged.

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use super::{Bare, Letter, WINDOW};
use crate::brokers::Broker as _;

/// A message that is on its way.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
struct Sent<A>(A);

/// Sends all, and never has more than a window under way.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
async fn slide<A>(
    letters: &[Letter],
    mut send: impl AsyncFnMut(&Letter) -> Sent<A>,
    mut wait: impl AsyncFnMut(A),
) {
    let mut under_way = VecDeque::new();
    for letter in letters {
        if under_way.len() == WINDOW
            && let Some(Sent(first)) = under_way.pop_front()
        {
            wait(first).await;
        }
        under_way.push_back(send(letter).await);
    }
    for Sent(next) in under_way {
        wait(next).await;
    }
}

impl Bare for crate::brokers::Lines {
    /// Lines of JSON, of which a window is on disk before the next one is written.
    async fn publish_bare(&self, letters: &[Letter]) {
        let mut file = BufWriter::new(File::create(format!("{}.bare", self.url())).unwrap());
        for some in letters.chunks(WINDOW) {
            for Letter {
                id,
                headers,
                payload,
            } in some
            {
                let headers: serde_json::Map<_, _> = headers
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
                    .collect();
                let payload = std::str::from_utf8(payload).unwrap();
                let line = serde_json::json!({ "id": id, "headers": headers, "payload": payload });
                writeln!(file, "{line}").unwrap();
            }
            file.flush().unwrap();
            file.get_ref().sync_data().unwrap();
        }
    }
}

#[cfg(feature = "http")]
impl Bare for crate::brokers::Http {
    /// One after the other, as they have to be.
    const ENOUGH: usize = 10_000;

    async fn publish_bare(&self, letters: &[Letter]) {
        let (client, url) = (reqwest::Client::new(), self.url());
        for letter in letters {
            let mut request = client
                .post(&url)
                .header("content-type", "application/json")
                .header("idempotency-key", &letter.id);
            for (name, value) in &letter.headers {
                request = request.header(*name, value);
            }
            let answer = request.body(letter.payload.clone()).send().await.unwrap();
            assert!(answer.status().is_success(), "{answer:?}");
        }
    }
}

#[cfg(feature = "nats")]
impl Bare for crate::brokers::Nats {
    async fn publish_bare(&self, letters: &[Letter]) {
        use async_nats::jetstream::context::PublishAckFuture;

        let client = async_nats::connect(self.url()).await.unwrap();
        let context = async_nats::jetstream::new(client);
        let send = async |letter: &Letter| {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", &*letter.id);
            for (name, value) in &letter.headers {
                headers.insert(*name, &**value);
            }
            let payload = letter.payload.clone().into();
            let sent = context.publish_with_headers("orders.bare", headers, payload);
            Sent(sent.await.unwrap())
        };
        let wait = async |sent: PublishAckFuture| {
            sent.await.unwrap();
        };
        slide(letters, send, wait).await;
    }
}

#[cfg(feature = "redis")]
impl Bare for crate::brokers::Redis {
    /// Windows one after the other: that is how its clients pipeline.
    async fn publish_bare(&self, letters: &[Letter]) {
        let client = redis::Client::open(self.url()).unwrap();
        let mut client = client.get_multiplexed_async_connection().await.unwrap();
        for some in letters.chunks(WINDOW) {
            let mut pipeline = redis::pipe();
            for letter in some {
                let headers = letter.headers.iter();
                let headers = headers.map(|(name, value)| (*name, value.as_bytes()));
                let data = [("ce-data", &*letter.payload)];
                let entry: Vec<_> = headers.chain(data).collect();
                pipeline.xadd("bare", "*", &entry).ignore();
            }
            let () = pipeline.query_async(&mut client).await.unwrap();
        }
    }
}

#[cfg(feature = "rabbitmq")]
impl Bare for crate::brokers::RabbitMq {
    async fn publish_bare(&self, letters: &[Letter]) {
        use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
        use lapin::types::{FieldTable, LongString};
        use lapin::{BasicProperties, Connection, ConnectionProperties, PublisherConfirm};

        let (url, properties) = (self.url(), ConnectionProperties::default());
        let connection = Connection::connect(&url, properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let confirmed = channel.confirm_select(ConfirmSelectOptions::default());
        confirmed.await.unwrap();
        let queue = QueueDeclareOptions::durable();
        let queue = channel.queue_declare("bare".into(), queue, FieldTable::default());
        queue.await.unwrap();
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let send = async |letter: &Letter| {
            let mut headers = FieldTable::default();
            for (name, value) in &letter.headers {
                headers.insert((*name).into(), LongString::from(value.as_str()).into());
            }
            let persistent = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(letter.id.as_str().into())
                .with_headers(headers);
            let (exchange, queue, payload) = ("".into(), "bare".into(), &letter.payload);
            let sent = channel.basic_publish(exchange, queue, options, payload, persistent);
            Sent(sent.await.unwrap())
        };
        let wait = async |sent: PublisherConfirm| {
            sent.await.unwrap();
        };
        slide(letters, send, wait).await;
    }
}

#[cfg(feature = "kafka")]
impl Bare for crate::brokers::Kafka {
    async fn publish_bare(&self, letters: &[Letter]) {
        use rdkafka::ClientConfig;
        use rdkafka::message::{Header, OwnedHeaders};
        use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", self.url())
            .set("enable.idempotence", "true")
            .set("linger.ms", "1")
            .create()
            .unwrap();
        let send = async |letter: &Letter| {
            let headers = letter.headers.iter().fold(
                OwnedHeaders::new_with_capacity(letter.headers.len()),
                |headers, (key, value)| {
                    let value = Some(value.as_bytes());
                    headers.insert(Header { key, value })
                },
            );
            let record = FutureRecord::to("bare")
                .key(&letter.id)
                .headers(headers)
                .payload(&letter.payload);
            Sent(
                producer
                    .send_result(record)
                    .map_err(|(error, _)| error)
                    .unwrap(),
            )
        };
        let wait = async |sent: DeliveryFuture| {
            sent.await.unwrap().map_err(|(error, _)| error).unwrap();
        };
        slide(letters, send, wait).await;
    }
}

#[cfg(feature = "mqtt")]
impl Bare for crate::brokers::Mqtt {
    async fn publish_bare(&self, letters: &[Letter]) {
        use rumqttc::v5::mqttbytes::QoS;
        use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
        use rumqttc::v5::{AsyncClient, Event, MqttOptions};

        let port = self.url().rsplit(':').next().unwrap().parse().unwrap();
        let mut options = MqttOptions::new("bare", "127.0.0.1", port);
        options.set_outgoing_inflight_upper_limit(u16::try_from(WINDOW).unwrap());
        let (client, mut events) = AsyncClient::new(options, WINDOW);
        let send = async {
            for letter in letters {
                let headers = letter.headers.iter();
                let headers = headers.map(|(name, value)| ((*name).to_owned(), value.clone()));
                let properties = PublishProperties {
                    user_properties: headers.collect(),
                    ..PublishProperties::default()
                };
                let (topic, qos, payload) = ("orders/bare", QoS::AtLeastOnce, &letter.payload);
                let payload = payload.clone();
                let sent = client.publish_with_properties(topic, qos, false, payload, properties);
                sent.await.unwrap();
            }
        };
        let hear = async {
            let mut left = letters.len();
            while left > 0 {
                let event = events.poll().await.unwrap();
                left -= usize::from(matches!(event, Event::Incoming(Packet::PubAck(_))));
            }
        };
        tokio::join!(send, hear);
    }
}
