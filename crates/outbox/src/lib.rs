//! A transactional outbox for PostgreSQL, MySQL/MariaDB and SQLite.
//!
//! An application writes its business rows and its messages in **one** database transaction; the
//! outbox then delivers every committed message, in order within its partition, to a handler or a
//! broker. No message without its commit, no commit without its message.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # async fn shop(pool: sqlx::SqlitePool) -> Result<(), outbox::OutboxError> {
//! use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxMessage, Partitions};
//!
//! let handle = Outbox::builder(pool)
//!     .auto_migrate()
//!     .queue("orders", Partitions::of(4)) // a bad constant panics, and does not compile in a const
//!     .leased(async |message: OutboxMessage| {
//!         println!("{} said {:?}", message.key.unwrap_or_default(), message.payload);
//!         MessageResult::Ok
//!     })
//!     .start()
//!     .await?;
//! let outbox = handle.outbox();
//!
//! outbox
//!     .transaction(async |transaction| {
//!         sqlx::query("INSERT INTO orders (item) VALUES ('a loom')")
//!             .execute(&mut *transaction)
//!             .await?;
//!         let message = EnqueueMessage::keyed("ada", r#"{"item": "a loom"}"#, "order.placed");
//!         outbox.enqueue(transaction, "orders", message).await
//!     })
//!     .await?;
//!
//! handle.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A message exists if and only if the transaction it was enqueued in commits. See
//! [`Outbox`] for the producer's side, [`LeasedMessageHandler`] and [`TransactionalMessageHandler`] for
//! the consumer's, [`OutboxBuilder`] for everything that can be set.
//!
//! | feature | brings |
//! |---|---|
//! | `postgres` | PostgreSQL 13 and later |
//! | `mysql` | MySQL 8.0 and later, MariaDB 10.6 and later |
//! | `sqlite` | SQLite 3.35 and later, embedded |
//! | `otel` | messages carry the trace of the span they are enqueued in, and handlers continue it |
//! | `testing` | [`testing`]: the pipeline step by step, for your tests |

#![cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    expect(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "without a database nobody uses it"
    )
)]

mod audit;
mod backend;
mod batch;
mod builder;
mod clock;
mod config;
mod dead_letter;
mod engine;
mod error;
mod handle;
mod handler;
mod health;
mod message;
pub mod metrics;
#[cfg(mutants)]
pub mod mutants;
mod operator;
mod outbox;
mod partition_mode;
mod patience;
mod pipeline;
mod queue;
mod schedule;
mod schema;
mod stats;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod tuning;
mod unannounced;
mod workers;

pub use audit::AuditEntry;
pub use backend::{Backend, TablePrefix};
pub use batch::Batch;
pub use builder::{DEFAULT_MAX_PAYLOAD, OutboxBuilder, QueueBuilder};
pub use config::{
    DEFAULT_MAX_INNER_ITERATIONS, DEFAULT_PARTITION_BATCH_LIMIT, DEFAULT_POLL_INTERVAL,
    DEFAULT_SEQUENCER_BATCH_SIZE, LeaseConfig, OutboxConfig, SequencerConfig,
};
pub use dead_letter::{DeadLetter, DeadLetterFilter, DeadLetterStatus};
pub use error::OutboxError;
pub use handle::OutboxHandle;
pub use handler::{
    HandlerResult, LeasedHandler, LeasedMessageHandler, MessageResult, TransactionalHandler,
    TransactionalMessageHandler,
};
pub use health::{Finding, ProcessStats, Severity, findings};
pub use message::{EnqueueMessage, OutboxMessage, OutboxMessageId};
pub use outbox::Outbox;
pub use partition_mode::{PartitionMode, PartitionModeState};
pub use queue::{Partitions, QueueName};
pub use schema::Schema;
pub use stats::PartitionStats;
pub use tuning::{OutboxProfile, WorkerTuning};
pub use workers::processor::ProcessorReport;
