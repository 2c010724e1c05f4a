//! A producer, and how it is given up.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use outbox::OutboxMessage;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _, PurgeConfig};
use tokio::sync::Semaphore;

use super::{BROKER, said};
use crate::Refusal;
use crate::envelope;
use crate::link::{Deadline, Link, later};
use crate::lock;
use crate::routes::Routes;

/// How many topics are asked for at once. Each keeps a thread until the cluster answers, and an application has other
/// uses for those.
const LOOKS: usize = 4;
/// How much longer than ours the client's patience is: ours ends first, and a thread that waits soon after it.
const GRACE: Duration = Duration::from_millis(500);

pub(super) struct Producer {
    /// There until it is dropped.
    client: Option<FutureProducer<Told>>,
    told: Told,
    pub(super) topics: Routes,
    looks: Arc<Semaphore>,
    /// Whether it takes messages. Held while a window is handed over, so that it is given up before a window
    /// or after it, never in its middle.
    is_open: RwLock<bool>,
}

impl Link for Producer {
    /// One with a fatal error takes nothing any more.
    fn is_alive(&self) -> bool {
        let is_open = *self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        let client = self.client.as_ref().filter(|_| is_open);
        client.is_some_and(|client| client.client().fatal_error().is_none())
    }
}

impl Producer {
    pub(super) fn new(config: &ClientConfig) -> Result<Self, String> {
        let told = Told::default();
        let client = config.create_with_context(told.clone());
        Ok(Self {
            client: Some(client.map_err(|error| format!("{BROKER}: {}", said(&error)))?),
            told,
            topics: Routes::default(),
            looks: Arc::new(Semaphore::new(LOOKS)),
            is_open: RwLock::new(true),
        })
    }

    /// Finds the topics that are not known yet, up to the first that is not there: the refusal is in its place
    /// then. Fails if the cluster says nothing.
    pub(super) async fn find(
        &self,
        topics: &mut [Result<String, Refusal>],
        deadline: &Deadline,
    ) -> Result<(), String> {
        for place in topics {
            let Ok(topic) = place else { break };
            if self.topics.is_proven(topic) {
                continue;
            }
            match self.look(Some(topic.clone()), deadline).await? {
                Ok(()) => self.topics.prove(topic.clone()),
                Err(problem) => {
                    *place = Err(Refusal::later(problem));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Asks the cluster for a topic, or whether it is there at all, and answers what it says of the topic. If it
    /// says nothing the producer is given up: a new one asks again at once.
    pub(super) async fn look(
        &self,
        topic: Option<String>,
        deadline: &Deadline,
    ) -> Result<Result<(), String>, String> {
        let Some(client) = self.client.clone() else {
            return Ok(Ok(()));
        };
        let looks = Arc::clone(&self.looks);
        let asked = async {
            // It is given back when the thread ends, not when nobody waits for it any more.
            let look = looks.acquire_owned().await;
            let patience = deadline.left() + GRACE;
            let asked = tokio::task::spawn_blocking(move || {
                let _look = look;
                let metadata = client.client().fetch_metadata(topic.as_deref(), patience)?;
                let mut topics = metadata.topics().iter().filter(|_| topic.is_some());
                Ok(topics.find_map(|topic| {
                    let error = RDKafkaErrorCode::from(topic.error()?);
                    Some(format!("{BROKER}: topic {:?}: {error}", topic.name()))
                }))
            });
            asked.await
        };
        let problem = match deadline.limit(asked).await {
            Ok(Ok(Ok(None))) => return Ok(Ok(())),
            Ok(Ok(Ok(Some(problem)))) => return Ok(Err(problem)),
            // On a machine that is busy the client's patience may be noticed first.
            Ok(Ok(Err(_))) if deadline.left().is_zero() => deadline.silence(),
            Ok(Ok(Err(error))) => format!("{BROKER}: {}", said(&error)),
            Ok(Err(error)) => format!("{BROKER}: {error}"),
            Err(problem) => problem,
        };
        self.give_up();
        Err(self.explain(problem))
    }

    /// Hands over messages up to the first that it refuses.
    pub(super) fn send<'a>(
        &self,
        messages: impl Iterator<Item = (&'a OutboxMessage, Result<String, Refusal>)>,
    ) -> (Vec<DeliveryFuture>, Option<Refusal>) {
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        let mut under_way = Vec::new();
        for (message, topic) in messages {
            let client = self.client.as_ref().filter(|_| *is_open);
            let sent = match (topic, client) {
                (Err(refusal), _) => Err(refusal),
                (Ok(_), None) => Err(later(BROKER, "the producer was given up")),
                (Ok(topic), Some(client)) => send(client, message, &topic),
            };
            match sent {
                Ok(delivery) => under_way.push(delivery),
                Err(refusal) => return (under_way, Some(refusal)),
            }
        }
        (under_way, None)
    }

    /// Delivers nothing any more that it has not delivered yet.
    pub(super) fn give_up(&self) {
        let mut is_open = self.is_open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = self.client.as_ref().filter(|_| *is_open) {
            *is_open = false;
            client.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// A problem, and what the client last said.
    pub(super) fn explain(&self, problem: String) -> String {
        match &*lock(&self.told.0) {
            Some(last) => format!("{problem} ({last})"),
            None => problem,
        }
    }
}

impl Drop for Producer {
    /// Elsewhere: the client waits for its threads.
    fn drop(&mut self) {
        let client = self.client.take();
        std::thread::spawn(move || drop(client));
    }
}

fn send(
    client: &FutureProducer<Told>,
    message: &OutboxMessage,
    topic: &str,
) -> Result<DeliveryFuture, Refusal> {
    let mut headers = OwnedHeaders::new();
    for (name, value) in envelope::headers(message) {
        let (key, value) = (name.as_str(), Some(&value));
        headers = headers.insert(Header { key, value });
    }
    let since = message.created_at.duration_since(UNIX_EPOCH);
    let millis = since.unwrap_or_default().as_millis();
    let unkeyed = || format!("{}/{}", message.queue, message.partition);
    let key = message.key.clone().unwrap_or_else(unkeyed);
    let record = FutureRecord::to(topic)
        .key(&key)
        .payload(&message.payload)
        .timestamp(i64::try_from(millis).unwrap_or(i64::MAX))
        .headers(headers);
    client
        .send_result(record)
        .map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::MessageSizeTooLarge) => {
                let bytes = message.payload.len();
                Refusal::never(format!(
                    "its payload of {bytes} bytes makes it larger than max_message_bytes"
                ))
            }
            _ => later(BROKER, said(&error)),
        })
}

/// The last error that the client told, which says more than the one that a message fails with.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Option<String>>>);

impl ClientContext for Told {
    fn error(&self, error: KafkaError, reason: &str) {
        let mut last = lock(&self.0);
        // That none is left says less than what became of the last one, with its address.
        let says_less = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        if last.is_none() || !says_less {
            *last = Some(reason.to_owned());
        }
    }
}
