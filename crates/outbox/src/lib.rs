//! A transactional outbox for PostgreSQL, MySQL/MariaDB and SQLite.
//!
//! An application writes its business rows and its messages in **one** database transaction; the
//! outbox then delivers every committed message, in order within its partition, to a handler or a
//! broker. No message without its commit, no commit without its message.
//!
//! This version holds the vocabulary and the configuration; the engine that delivers is next.
//!
//! ```
//! use outbox::{EnqueueMessage, Partitions};
//!
//! const ORDERS: Partitions = Partitions::of(4); // a bad constant does not compile
//!
//! let message = EnqueueMessage::keyed("customer-17", r#"{"total": 42}"#, "order.placed")
//!     .header("tenant", "acme");
//! // The same customer, the same partition, in every version and every language.
//! assert_eq!(message.partition_in(ORDERS), 3);
//! # Ok::<(), outbox::OutboxError>(())
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `postgres` | PostgreSQL 13 and later |
//! | `mysql` | MySQL 8.0 and later, MariaDB 10.6 and later |
//! | `sqlite` | SQLite 3.35 and later, embedded |

mod config;
mod error;
mod handler;
mod message;
mod partition_mode;
mod queue;
mod tuning;

pub use config::{
    DEFAULT_MAX_INNER_ITERATIONS, DEFAULT_PARTITION_BATCH_LIMIT, DEFAULT_POLL_INTERVAL,
    DEFAULT_SEQUENCER_BATCH_SIZE, LeaseConfig, OutboxConfig, SequencerConfig,
};
pub use error::OutboxError;
pub use handler::{HandlerResult, MessageResult};
pub use message::{EnqueueMessage, OutboxMessageId};
pub use partition_mode::{PartitionMode, PartitionModeState};
pub use queue::{Partitions, QueueName};
pub use tuning::{OutboxProfile, WorkerTuning};
