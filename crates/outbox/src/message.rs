//! What a producer writes and a handler gets: a message, and its id.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::{Backend, PartitionId, StoredMessage};
use crate::dead_letter::DeadLetter;
use crate::engine::Queue;
use crate::error::OutboxError;
use crate::queue::{Partitions, QueueName};

pub(crate) const MAX_PAYLOAD_TYPE: usize = 1024;
pub(crate) const MAX_KEY: usize = 1024;
pub(crate) const MAX_HEADERS: usize = 64;
pub(crate) const MAX_HEADER_NAME: usize = 256;
pub(crate) const MAX_HEADER_VALUE: usize = 8192;

/// What an outbox is called unless it has a name.
pub(crate) const DEFAULT_ORIGIN: &str = "outbox";

/// What a requeued message says of its past.
const REQUEUE_HEADERS: [&str; 3] = [
    "outbox-requeued-from",
    "outbox-attempts",
    "outbox-last-error",
];

/// The identity of a message, from enqueue to its end. Ascending within a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutboxMessageId(pub i64);

impl fmt::Display for OutboxMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message as a handler gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxMessage {
    /// The message's number in its database, the same at every delivery.
    pub id: OutboxMessageId,
    /// The outbox it comes from, as [`OutboxBuilder::origin`](crate::OutboxBuilder::origin) calls it.
    pub origin: Arc<str>,
    /// The queue it was enqueued to.
    pub queue: Arc<str>,
    /// The partition of the queue, counted from 0.
    pub partition: u32,
    /// The database's number of the partition, unique over all queues.
    pub partition_id: i64,
    /// Its place in the partition: 1, 2, 3 … without holes.
    pub seq: i64,
    /// What was enqueued, byte for byte.
    pub payload: Vec<u8>,
    /// What that is.
    pub payload_type: String,
    /// When it was enqueued, by the database's clock.
    pub created_at: SystemTime,
    /// How often it was tried before: 0 at the first delivery.
    pub attempts: u32,
    /// The key it was enqueued with.
    pub key: Option<String>,
    /// The headers it was enqueued with.
    pub headers: BTreeMap<String, String>,
    /// The number of the lease it is delivered under. Grows with every change of hands, so a sink
    /// can refuse what an outdated holder still sends.
    pub epoch: i64,
}

impl OutboxMessage {
    /// By what a receiver tells a redelivery: `origin-id-milliseconds`, with when it was enqueued. The same at
    /// every delivery; never that of another message, also where a backup was restored and numbers are
    /// given again, or where another outbox has another origin.
    pub fn identity(&self) -> String {
        let since = self.created_at.duration_since(UNIX_EPOCH);
        let millis = since.unwrap_or_default().as_millis();
        format!("{}-{}-{millis}", self.origin, self.id)
    }

    /// As it is stored: at the first attempt, and under no lease.
    pub(crate) fn stored<DB: Backend>(
        stored: StoredMessage,
        queue: &Queue<DB>,
        partition: u32,
        partition_id: PartitionId,
    ) -> Self {
        Self {
            id: stored.id,
            origin: Arc::clone(&queue.origin),
            queue: queue.name.shared(),
            partition,
            partition_id: partition_id.0,
            seq: stored.seq.0,
            payload: stored.payload,
            payload_type: stored.payload_type,
            created_at: time_of(stored.created_at.0),
            attempts: 0,
            key: stored.key,
            headers: decoded_headers(stored.headers.as_deref()),
            epoch: 0,
        }
    }

    /// Whether both are the same message.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.partition_id, self.seq) == (other.partition_id, other.seq)
    }
}

/// Headers as they are stored. Half a character, as JavaScript leaves it where it cuts a text, is a
/// replacement character; what another language wrote and nobody can read at all is no header.
pub(crate) fn decoded_headers(stored: Option<&str>) -> BTreeMap<String, String> {
    let Some(stored) = stored else {
        return BTreeMap::new();
    };
    let headers = serde_json::from_str(stored).or_else(|_| serde_json::from_str(&mended(stored)));
    headers.unwrap_or_else(|error| {
        tracing::warn!(%error, "headers that cannot be read are left out");
        BTreeMap::new()
    })
}

/// JSON in which every half of a surrogate pair without its other half is U+FFFD.
fn mended(json: &str) -> String {
    let code = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (mut mended, mut at) = (String::new(), 0);
    while let Some(character) = json[at..].chars().next() {
        let length = match (code(at), code(at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                mended.push_str("\\ufffd");
                at += 6;
                continue;
            }
            // What is escaped otherwise, a backslash for one, begins nothing.
            _ if character == '\\' => json[at..].chars().take(2).map(char::len_utf8).sum(),
            _ => character.len_utf8(),
        };
        mended.push_str(&json[at..at + length]);
        at += length;
    }
    mended
}

/// The time of a number of milliseconds since 1970.
pub(crate) fn time_of(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Where a message goes: a partition named outright, or the one its key hashes to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Partition(u32),
    Key(String),
}

/// A message to enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a message exists once it is enqueued"]
pub struct EnqueueMessage {
    target: Target,
    payload: Vec<u8>,
    payload_type: String,
    headers: Vec<(String, String)>,
}

impl EnqueueMessage {
    /// A message to a partition of one's own choice, counted from 0.
    pub fn to(
        partition: u32,
        payload: impl Into<Vec<u8>>,
        payload_type: impl Into<String>,
    ) -> Self {
        Self::new(
            Target::Partition(partition),
            payload.into(),
            payload_type.into(),
        )
    }

    /// A message to the partition of its key: messages of one key stay in order. The key travels
    /// with the message.
    pub fn keyed(
        key: impl Into<String>,
        payload: impl Into<Vec<u8>>,
        payload_type: impl Into<String>,
    ) -> Self {
        Self::new(Target::Key(key.into()), payload.into(), payload_type.into())
    }

    fn new(target: Target, payload: Vec<u8>, payload_type: String) -> Self {
        Self {
            target,
            payload,
            payload_type,
            headers: Vec::new(),
        }
    }

    /// Adds a header that travels with the message.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The key, if it was made with one.
    pub fn key(&self) -> Option<&str> {
        match &self.target {
            Target::Key(key) => Some(key),
            Target::Partition(_) => None,
        }
    }

    /// What is delivered, byte for byte.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What the payload is.
    pub fn payload_type(&self) -> &str {
        &self.payload_type
    }

    /// The headers in the order they were added.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A dead letter on its way back: what it was, and where it has been.
    pub(crate) fn requeued(letter: &DeadLetter) -> Self {
        let target = match &letter.key {
            Some(key) => Target::Key(key.clone()),
            None => Target::Partition(letter.partition),
        };
        let mut message = Self::new(target, letter.payload.clone(), letter.payload_type.clone());
        message.headers = letter.headers.clone().into_iter().collect();
        message
            .headers
            .retain(|(name, _)| !REQUEUE_HEADERS.contains(&name.as_str()));
        let history = [
            letter.id.to_string(),
            letter.attempts.to_string(),
            letter.last_error.clone(),
        ];
        let names = REQUEUE_HEADERS.map(str::to_owned);
        message.headers.extend(names.into_iter().zip(history));
        message
    }

    /// About how many bytes it has altogether.
    #[cfg(feature = "mysql")]
    pub(crate) fn size(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(k, v)| k.len() + v.len() + 8)
            .sum();
        let key = self.key().map_or(0, str::len);
        self.payload().len() + self.payload_type().len() + key + headers
    }

    /// The headers as they are stored: a JSON object, or nothing.
    pub(crate) fn encoded_headers(&self) -> Option<String> {
        let object: serde_json::Map<_, _> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect();
        (!object.is_empty()).then(|| serde_json::Value::from(object).to_string())
    }

    /// The partition this message goes to in a queue of so many. One that was named outright is
    /// not checked here: enqueuing refuses it with [`OutboxError::PartitionOutOfRange`].
    pub fn partition_in(&self, partitions: Partitions) -> u32 {
        match &self.target {
            Target::Partition(partition) => *partition,
            Target::Key(key) => partitions.of_key(key),
        }
    }

    /// Checks everything that can be checked before the database is asked, and answers the
    /// partition.
    pub fn validate(
        &self,
        queue: &QueueName,
        partitions: Partitions,
        max_payload: usize,
    ) -> Result<u32, OutboxError> {
        let partition = self.partition_in(partitions);
        let max = u32::from(partitions.count()) - 1;
        if partition > max {
            return Err(OutboxError::PartitionOutOfRange {
                queue: queue.as_str().to_owned(),
                partition,
                max,
            });
        }
        if self.payload.len() > max_payload {
            let size = self.payload.len();
            return Err(OutboxError::PayloadTooLarge {
                size,
                max: max_payload,
            });
        }
        if !is_printable(&self.payload_type, MAX_PAYLOAD_TYPE) {
            return Err(OutboxError::InvalidPayloadType(excerpt(&self.payload_type)));
        }
        if let Some(key) = self.key().filter(|key| !is_storable(key, MAX_KEY)) {
            return Err(OutboxError::InvalidKey(excerpt(key)));
        }
        self.validate_headers()?;
        Ok(partition)
    }

    fn validate_headers(&self) -> Result<(), OutboxError> {
        for (index, (name, value)) in self.headers.iter().enumerate() {
            let first_of_its_name = self.headers[..index]
                .iter()
                .all(|(earlier, _)| earlier != name);
            let valid = index < MAX_HEADERS
                && first_of_its_name
                && is_printable(name, MAX_HEADER_NAME)
                && is_storable(value, MAX_HEADER_VALUE);
            if !valid {
                return Err(OutboxError::InvalidHeader(excerpt(name)));
            }
        }
        Ok(())
    }
}

/// 1 to `max` printable ASCII characters.
fn is_printable(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// At most `max` bytes of text that every database can store.
fn is_storable(text: &str, max: usize) -> bool {
    text.len() <= max && !text.contains('\0')
}

/// Enough of a refused value to recognise it.
fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PARTITIONS: Partitions = Partitions::of(4);
    const MAX: usize = 1000;

    fn validate(message: &EnqueueMessage) -> Result<u32, OutboxError> {
        message.validate(&"orders".parse().unwrap(), PARTITIONS, MAX)
    }

    fn message() -> EnqueueMessage {
        EnqueueMessage::to(3, b"{}", "application/json")
    }

    #[cfg(feature = "testing")]
    #[test]
    fn an_identity_is_that_of_one_message() {
        let mut message = crate::testing::message("body", "t");
        message.created_at = time_of(1_700_000_000_123);
        assert_eq!(message.identity(), "outbox-1-1700000000123");
        message.origin = "eu".into();
        assert_eq!(message.identity(), "eu-1-1700000000123");
    }

    #[test]
    fn half_a_character_spoils_no_header() {
        let stored = r#"{"a": "x\ud83d", "b": "\ud83d\ude00 \\ud83d", "c": "ž\udc00\u0041"}"#;
        let headers = decoded_headers(Some(stored));
        let expected = [("a", "x\u{fffd}"), ("b", "😀 \\ud83d"), ("c", "ž\u{fffd}A")];
        assert!(
            headers
                .iter()
                .map(|(name, value)| (&**name, &**value))
                .eq(expected),
            "{headers:?}"
        );
        assert!(decoded_headers(Some("not JSON \\u12")).is_empty());
    }

    #[test]
    fn a_message_carries_what_it_was_made_with() {
        let message = EnqueueMessage::keyed("k", "body", "text/plain").header("a", "1");
        let message = message.header("b", "2");
        assert_eq!(message.key(), Some("k"));
        assert_eq!(message.payload(), b"body");
        assert_eq!(message.payload_type(), "text/plain");
        assert_eq!(
            message.headers().collect::<Vec<_>>(),
            [("a", "1"), ("b", "2")]
        );
        assert_eq!(validate(&message).unwrap(), PARTITIONS.of_key("k"));
    }

    #[test]
    fn limits_are_inclusive_and_empty_payloads_are_fine() {
        let t = "t".repeat(1024);
        for good in [
            message(),
            EnqueueMessage::to(0, [], "t"),
            EnqueueMessage::to(0, vec![0; MAX], "~ t"),
            EnqueueMessage::to(0, [0, 255, 254], t),
            EnqueueMessage::keyed("", [], "t"),
            EnqueueMessage::keyed("k".repeat(1024), [], "t"),
            message().header("n".repeat(256), "ž".repeat(4096)),
            (0..64).fold(message(), |message, n| message.header(format!("h{n}"), "")),
        ] {
            validate(&good).unwrap();
        }
    }

    #[test]
    fn each_refusal_names_the_value_and_the_limit() {
        let refused = |message| validate(&message).unwrap_err();
        let to =
            |payload: Vec<u8>, payload_type: &str| EnqueueMessage::to(0, payload, payload_type);
        assert_eq!(
            refused(EnqueueMessage::to(4, [], "t")).to_string(),
            r#"partition 4 of queue "orders" does not exist: the highest is 3"#
        );
        assert_eq!(
            refused(to(vec![0; MAX + 1], "t")).to_string(),
            "payload of 1001 bytes is over the limit of 1000 bytes"
        );
        let long = "t".repeat(1025);
        for payload_type in ["", "tab\t", "žluť", "nul\0", &long] {
            let error = refused(to(vec![], payload_type));
            assert!(
                matches!(&error, OutboxError::InvalidPayloadType(_)),
                "{error}"
            );
            assert!(
                error.to_string().contains("1 to 1024 printable ASCII"),
                "{error}"
            );
        }
        for key in ["nul\0".to_owned(), "k".repeat(1025)] {
            let error = refused(EnqueueMessage::keyed(key, [], "t"));
            assert!(matches!(error, OutboxError::InvalidKey(_)), "{error}");
        }
        for bad in [
            message().header("", "v"),
            message().header("n", "nul\0"),
            message().header("n", "v".repeat(8193)),
            message().header("n".repeat(257), "v"),
            message().header("twice", "1").header("twice", "2"),
            (0..65).fold(message(), |message, n| message.header(format!("h{n}"), "")),
        ] {
            let error = refused(bad);
            assert!(matches!(error, OutboxError::InvalidHeader(_)), "{error}");
        }
    }

    /// Mostly what may be a payload type or the name of a header.
    fn printable() -> impl Strategy<Value = String> {
        prop_oneof![9 => "[ -~]{1,20}", 1 => "(?s:.{0,20})"]
    }

    proptest! {
        #[test]
        fn what_passes_can_be_stored_and_comes_back(
            key in any::<String>(),
            payload_type in printable(),
            headers in vec((printable(), any::<String>()), 0..5),
        ) {
            let plain = EnqueueMessage::keyed(&key, [], &payload_type);
            let message = headers.iter().fold(plain, |message, (name, value)| {
                message.header(name, value)
            });
            let is_printable = |text: &str| !text.is_empty() && text.chars().all(|c| matches!(c, ' '..='~'));
            let by_name: BTreeMap<_, _> = headers.iter().cloned().collect();
            let good = !key.contains('\0')
                && is_printable(&payload_type)
                && by_name.len() == headers.len()
                && by_name.iter().all(|(name, value)| is_printable(name) && !value.contains('\0'));
            prop_assert_eq!(validate(&message).is_ok(), good);
            let back = decoded_headers(message.encoded_headers().as_deref());
            prop_assert!(!good || back == by_name);
        }

        #[test]
        fn no_stored_text_makes_reading_headers_panic(stored in any::<String>()) {
            decoded_headers(Some(&stored));
        }
    }
}
