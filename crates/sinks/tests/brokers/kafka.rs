//! The cluster that librdkafka has for tests: three brokers in this process, on real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_sinks::KafkaSink;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::producer::{FutureProducer, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Arrived, Broker};

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 4;
const ALL_BROKERS: i32 = -1;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Kafka {
    /// Whose cluster it is.
    client: FutureProducer,
    servers: String,
    counter: Arc<BaseConsumer>,
}

/// Does something with the cluster, which cannot go from thread to thread.
macro_rules! cluster {
    ($kafka:expr) => {
        $kafka.client.client().mock_cluster().unwrap()
    };
}

fn consumer(servers: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "observer")
        .create()
        .unwrap()
}

/// How many records each partition has.
fn counts(consumer: &BaseConsumer) -> Vec<i64> {
    let mut ends = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        let end = Offset::End;
        ends.add_partition_offset(TOPIC, partition, end).unwrap();
    }
    let ends = consumer.offsets_for_times(ends, PATIENCE).unwrap();
    let ends = ends.elements();
    ends.iter()
        .map(|one| one.offset().to_raw().unwrap())
        .collect()
}

/// All records of a partition.
fn read(consumer: &BaseConsumer, partition: i32, count: i64) -> Vec<OwnedMessage> {
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(TOPIC, partition, Offset::Beginning)
        .unwrap();
    consumer.assign(&assignment).unwrap();
    let until = Instant::now() + PATIENCE;
    let mut read = Vec::new();
    while i64::try_from(read.len()).unwrap() < count {
        // It also comes back with nothing before its time.
        let record = consumer.poll(PATIENCE);
        read.extend(record.map(|record| record.unwrap().detach()));
        assert!(Instant::now() < until, "{} of {count} read", read.len());
    }
    read
}

fn arrived(record: &OwnedMessage) -> Arrived {
    let headers = record.headers().unwrap();
    let header = |name: &str| {
        let header = headers.iter().find(|header| header.key == name)?;
        Some(String::from_utf8(header.value?.to_vec()).unwrap())
    };
    let arrived = Arrived::with(header, record.payload().unwrap());
    assert_eq!(record.key(), Some(arrived.key.as_bytes()));
    arrived
}

impl Broker for Kafka {
    type Sink = KafkaSink;
    /// The mock cluster keeps 5 MiB of each partition.
    const MOST: u32 = 40_000;

    async fn start() -> Option<Self> {
        let client: FutureProducer = ClientConfig::new()
            .set("test.mock.num.brokers", "3")
            .create()
            .unwrap();
        let servers = {
            let cluster = client.client().mock_cluster().unwrap();
            cluster.create_topic(TOPIC, PARTITIONS, 3).unwrap();
            cluster.bootstrap_servers()
        };
        let counter = Arc::new(consumer(&servers));
        Some(Self {
            client,
            servers,
            counter,
        })
    }

    fn url(&self) -> String {
        self.servers.clone()
    }

    fn sink_at(&self, url: &str, timeout: Duration) -> KafkaSink {
        let sink = KafkaSink::to(url).topic(TOPIC).timeout(timeout);
        sink.build().unwrap()
    }

    async fn count(&self) -> usize {
        let counter = Arc::clone(&self.counter);
        let counted = tokio::task::spawn_blocking(move || counts(&counter).iter().sum::<i64>());
        usize::try_from(counted.await.unwrap()).unwrap()
    }

    /// Partition by partition, the one that was first written to first. There is no order between them.
    async fn arrived(&self) -> Vec<Arrived> {
        let consumer = consumer(&self.servers);
        let read = tokio::task::spawn_blocking(move || {
            let counts = (0..).zip(counts(&consumer));
            let read = counts.map(|(partition, count)| read(&consumer, partition, count));
            let mut read: Vec<_> = read.collect();
            read.sort_by_key(|records| records.first()?.timestamp().to_millis());
            read
        });
        read.await.unwrap().iter().flatten().map(arrived).collect()
    }

    async fn stop(&mut self) {
        cluster!(self).broker_down(ALL_BROKERS).unwrap();
    }

    async fn start_again(&mut self) {
        cluster!(self).broker_up(ALL_BROKERS).unwrap();
    }
}

mod tests {
    use futures_util::future::join_all;
    use outbox_sinks::{Refusal, Sink as _};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::brokers::{keyed, reason};
    use crate::{TIMEOUT, disturbed, message, works_again};

    /// Longer than anybody waits here.
    const FOREVER: Duration = Duration::from_secs(3_600);
    /// A new producer alone needs half a second to be given its number.
    const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_kafka_cannot_take_is_refused_and_what_was_before_it_is_safe() {
        let broker = Kafka::start().await.unwrap();
        let sink = KafkaSink::to(broker.url()).topic("{key}").build().unwrap();
        let mut large = keyed(TOPIC);
        large.payload = vec![0; 1_000_000];
        for (bad, expected) in [
            (large, "larger than max_message_bytes"),
            (keyed("a b"), "the topic \"a b\" is none"),
            (keyed(".."), "the topic \"..\" is none"),
        ] {
            let published = sink.publish(&[keyed(TOPIC), bad, keyed(TOPIC)]).await;
            assert_eq!(published.confirmed, 1);
            let never = matches!(published.refusal, Some(Refusal::Never { .. }));
            let reason = reason(published);
            assert!(never && reason.contains(expected), "{reason}");
        }
        assert_eq!(broker.count().await, 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_topic_that_is_not_there_is_named() {
        let broker = Kafka::start().await.unwrap();
        let sink = broker.sink_at(&broker.url(), TIMEOUT);
        let code = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        cluster!(broker).topic_error(TOPIC, code).unwrap();
        let problem = sink.check().await.unwrap_err();
        assert!(
            problem.contains("topic \"orders\": UnknownTopic"),
            "{problem}"
        );
        let published = sink.publish(&[message()]).await;
        assert_eq!(published.refusal, Some(Refusal::later(problem)));
        let code = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
        cluster!(broker).topic_error(TOPIC, code).unwrap();
        sink.check().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_topic_that_is_not_there_keeps_back_nothing_before_it() {
        let broker = Kafka::start().await.unwrap();
        let sink = KafkaSink::to(broker.url()).topic("{key}").build().unwrap();
        let code = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        cluster!(broker).topic_error("none", code).unwrap();
        let messages = [keyed(TOPIC), keyed(TOPIC), keyed("none"), keyed(TOPIC)];
        let published = sink.publish(&messages).await;
        assert_eq!(published.confirmed, 2);
        let reason = reason(published);
        assert!(reason.contains("topic \"none\": UnknownTopic"), "{reason}");
        assert_eq!(broker.count().await, 2);
    }

    /// Partitions that all ask a silent cluster leave threads to others.
    #[test]
    fn a_cluster_that_is_silent_keeps_few_threads() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(8)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let broker = Kafka::start().await.unwrap();
            cluster!(broker)
                .broker_round_trip_time(ALL_BROKERS, FOREVER)
                .unwrap();
            let sink = broker.sink_at(&broker.url(), SHORT_TIMEOUT);
            let messages = [message()];
            let publishing = join_all((0..64).map(|_| sink.publish(&messages)));
            let elsewhere = async { tokio::task::spawn_blocking(|| ()).await.unwrap() };
            let mut publishing = std::pin::pin!(publishing);
            tokio::select! {
                // All of them ask before anybody else wants a thread.
                biased;
                published = &mut publishing => panic!("{published:?}"),
                () = elsewhere => {}
            }
            for published in publishing.await {
                let reason = reason(published);
                assert!(reason.contains("did not answer within 3s"), "{reason}");
            }
        });
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_that_is_silent_or_away_is_given_up_in_time() {
        let mut broker = Kafka::start().await.unwrap();
        let sink = broker.sink_at(&broker.url(), SHORT_TIMEOUT);
        let works = async || works_again(&sink, SHORT_TIMEOUT).await;
        let refused = async || {
            let began = Instant::now();
            let published = sink.publish(&[message()]).await;
            assert_eq!(published.confirmed, 0);
            let reason = reason(published);
            assert!(began.elapsed() < SHORT_TIMEOUT * 5, "{reason}");
            reason
        };
        works().await;
        let slow = |delay| cluster!(broker).broker_round_trip_time(ALL_BROKERS, delay);
        slow(FOREVER).unwrap();
        // Once with the producer that was there, once with a new one.
        for _ in 0..2 {
            let reason = refused().await;
            assert!(reason.contains("did not answer within 3s"), "{reason}");
        }
        slow(Duration::ZERO).unwrap();
        // Nothing answers any more that was asked while it was silent.
        broker.stop().await;
        refused().await;
        assert_ne!(sink.check().await.unwrap_err(), "");
        broker.start_again().await;
        works().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn lost_answers_lose_nothing_and_keep_the_order() {
        let mut broker = Kafka::start().await.unwrap();
        let url = broker.url();
        // At any moment some answers are on their way.
        let delay = Duration::from_millis(50);
        cluster!(broker)
            .broker_round_trip_time(ALL_BROKERS, delay)
            .unwrap();
        let lose = async |broker: &mut Kafka, _| {
            broker.stop().await;
            broker.start_again().await;
        };
        disturbed(&mut broker, &url, TIMEOUT, 4, lose).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_network_that_goes_silent_loses_nothing_and_keeps_the_order() {
        let mut broker = Kafka::start().await.unwrap();
        let url = broker.url();
        let silence = async |broker: &mut Kafka, _| {
            cluster!(broker)
                .broker_round_trip_time(ALL_BROKERS, FOREVER)
                .unwrap();
            // As long as it takes the sink to give up.
            tokio::time::sleep(SHORT_TIMEOUT * 2).await;
            cluster!(broker)
                .broker_round_trip_time(ALL_BROKERS, Duration::ZERO)
                .unwrap();
            broker.stop().await;
            broker.start_again().await;
        };
        disturbed(&mut broker, &url, SHORT_TIMEOUT, 3, silence).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn brokers_that_refuse_lose_nothing_and_keep_the_order() {
        use RDKafkaRespErr as Code;
        let mut broker = Kafka::start().await.unwrap();
        let url = broker.url();
        let refuse = async |broker: &mut Kafka, go| {
            let code = match go {
                0 => Code::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
                1 => Code::RD_KAFKA_RESP_ERR__TRANSPORT,
                // Those that end a producer.
                2 => Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
                _ => Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            };
            cluster!(broker).request_errors(RDKafkaApiKey::Produce, &[code, code]);
        };
        disturbed(&mut broker, &url, TIMEOUT, 4, refuse).await;
    }
}
