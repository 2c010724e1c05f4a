//! Everything that can go wrong, for people and for `match`. Each refusal names the value, the limit
//! and so the way out.

use crate::backend::PartitionId;
use crate::message::{MAX_HEADER_NAME, MAX_HEADER_VALUE, MAX_HEADERS, MAX_KEY, MAX_PAYLOAD_TYPE};
use crate::queue::{MAX_PARTITIONS, MAX_QUEUE_NAME};

/// An error of the outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The queue was not registered with the builder.
    #[error("queue {0:?} is not registered: add `.queue({0:?}, …)` to the builder")]
    QueueNotRegistered(String),

    /// The partition does not exist in this queue.
    #[error("partition {partition} of queue {queue:?} does not exist: the highest is {max}")]
    PartitionOutOfRange {
        /// The queue that was written to.
        queue: String,
        /// The partition that was asked for.
        partition: u32,
        /// The highest partition of the queue.
        max: u32,
    },

    /// The payload is larger than the configured limit.
    #[error("payload of {size} bytes is over the limit of {max} bytes")]
    PayloadTooLarge {
        /// The payload's size in bytes.
        size: usize,
        /// The largest size allowed.
        max: usize,
    },

    /// The queue exists in the database with another number of partitions.
    #[error("queue {queue:?} has {found} partitions in the database, not {expected}")]
    PartitionCountMismatch {
        /// The queue.
        queue: String,
        /// The number of partitions this process was configured with.
        expected: u16,
        /// The number of partitions the database has.
        found: usize,
    },

    /// No queue can have this many partitions.
    #[error(
        "a queue cannot have {0} partitions: allowed are 1, 2, 4, 8, 16, 32 and {MAX_PARTITIONS}"
    )]
    InvalidPartitionCount(i128),

    /// The name is not one a queue can have.
    #[error(
        "invalid queue name {0:?}: 1 to {MAX_QUEUE_NAME} ASCII letters, digits, '.', '_' and '-', \
         the first and last a letter or digit"
    )]
    InvalidQueueName(String),

    /// The payload type is empty, too long or not printable.
    #[error("invalid payload type {0:?}: 1 to {MAX_PAYLOAD_TYPE} printable ASCII characters")]
    InvalidPayloadType(String),

    /// The key is too long, or has a NUL byte that not every database can store.
    #[error("invalid key {0:?}: at most {MAX_KEY} bytes of text without NUL")]
    InvalidKey(String),

    /// The header's name or value cannot be stored, or there are too many.
    #[error(
        "invalid header {0:?}: names are 1 to {MAX_HEADER_NAME} printable ASCII characters, each \
         once; values at most {MAX_HEADER_VALUE} bytes without NUL; at most {MAX_HEADERS} headers"
    )]
    InvalidHeader(String),

    /// A configuration value is outside its range.
    #[error("{field} is {value}, but must be {allowed}")]
    InvalidConfig {
        /// The field, as it is written in the configuration.
        field: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        allowed: String,
    },

    /// The dead letter is not there, claimed by somebody, or ended already.
    #[error("dead letter {0} is not pending: it does not exist, is being replayed or was ended")]
    DeadLetterNotPending(i64),

    /// The schema is missing, or of another version.
    #[error(
        "the schema has version {found}, but {expected} is needed: migrate first, or use \
         `.auto_migrate()`"
    )]
    SchemaVersion {
        /// The version that is there; 0 when there is none.
        found: u32,
        /// The version this library works with.
        expected: u32,
    },

    /// The account may not change the schema.
    #[error("this account may not change the schema, which needs {needed}: {error}")]
    MissingPrivilege {
        /// What an account needs for that.
        needed: &'static str,
        /// What the database said.
        #[source]
        error: sqlx::Error,
    },

    /// The order names a message that is not there: somebody else deleted it.
    #[error(
        "message {seq} of partition {partition_id} is missing although it was not settled: the \
         messages table was changed by somebody else"
    )]
    MissingMessage {
        /// The partition, which stands still.
        partition_id: i64,
        /// The place of the missing message.
        seq: i64,
    },

    /// The stored transaction ids belong to another cluster: the database was restored from a dump
    /// or failed over logically. Sequencing stops until an operator has looked.
    #[error(
        "partition {partition_id} was last sequenced in another database cluster: after a restore \
         run the repair command before anything else"
    )]
    ForeignTransactionIds {
        /// The partition, which stands still.
        partition_id: i64,
    },

    /// The partition was taken over by somebody else; nothing was written.
    #[error("partition {partition_id} was taken over by somebody else: look at it again")]
    LeaseLost {
        /// The partition.
        partition_id: i64,
    },

    /// Somebody is at work in the partition and did not let go of it in time.
    #[error(
        "partition {partition} of queue {queue:?} is in the middle of a transaction: try again when \
         its handler has come to its end"
    )]
    PartitionBusy {
        /// The queue.
        queue: String,
        /// The partition.
        partition: u32,
    },

    /// The database did not answer: it is overloaded, or the connection was cut off without a word.
    #[error("the database did not answer within {after:?}")]
    NoAnswer {
        /// How long was waited.
        after: std::time::Duration,
    },

    /// The database said no, or could not be reached.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
}

impl OutboxError {
    /// Whether the same call may succeed later: after a deadlock, a lock timeout, a lost connection, a
    /// restart of the server. Decided by the database's error codes, never by their text. A
    /// transaction in which such an error happened must be run again from its beginning.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Database(error) => crate::backend::is_retryable(error),
            Self::LeaseLost { .. } | Self::PartitionBusy { .. } | Self::NoAnswer { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn foreign_ids(partition_id: PartitionId) -> Self {
        let partition_id = partition_id.0;
        Self::ForeignTransactionIds { partition_id }
    }

    pub(crate) fn config(
        field: &'static str,
        value: impl std::fmt::Debug,
        allowed: impl Into<String>,
    ) -> Self {
        Self::InvalidConfig {
            field,
            value: format!("{value:?}"),
            allowed: allowed.into(),
        }
    }
}
