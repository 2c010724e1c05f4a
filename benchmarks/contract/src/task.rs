//! What a process is asked to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A database product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// MySQL.
    MySql,
    /// SQLite.
    Sqlite,
}

/// How messages are handled. The handler itself does nothing but count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handler {
    /// Nobody handles anything here.
    None,
    /// Outside any transaction, in batches.
    Leased,
    /// Inside the transaction that settles, in batches.
    Transactional,
}

/// What this process produces.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Production {
    /// Producers at once.
    pub producers: u64,
    /// Messages per transaction.
    pub per_transaction: u64,
    /// Stop after so many messages in total.
    pub count: Option<u64>,
    /// Stop after so long.
    pub millis: Option<u64>,
    /// Messages per second of all producers together; as fast as possible if not given.
    pub rate: Option<f64>,
}

impl Production {
    /// 8 producers, as fast as they can, for so long.
    pub fn flat_out(per_transaction: u64, time: Duration) -> Self {
        Self {
            producers: 8,
            per_transaction,
            count: None,
            millis: u64::try_from(time.as_millis()).ok(),
            rate: None,
        }
    }
}

/// What a process is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Which kind of database.
    pub database: Database,
    /// Where it is.
    pub url: String,
    /// Connections in the pool.
    pub pool: u32,
    /// Partitions of the queue.
    pub partitions: u16,
    /// Bytes of payload per message.
    pub payload_bytes: usize,
    /// Create the schema and the queue, then end.
    pub prepare: bool,
    /// Tune for latency rather than for throughput.
    pub low_latency: bool,
    /// A process that only produces keeps its background workers running.
    pub background: bool,
    /// How messages are handled.
    pub handler: Handler,
    /// What is produced, if anything.
    pub production: Option<Production>,
    /// Remember when each message was committed and handled.
    pub timestamps: bool,
    /// Ids are below this.
    pub capacity: u64,
    /// How many messages the floor reads at once; the others decide by themselves.
    pub floor_batch: i64,
    /// This process's number among those that share the queue, and how many there are. Only systems
    /// that cannot find out by themselves look at it.
    pub share: (u16, u16),
}

impl Task {
    /// A task that does nothing yet.
    pub fn new(database: Database, url: &str) -> Self {
        Self {
            database,
            url: url.to_owned(),
            pool: 20,
            partitions: 16,
            payload_bytes: 256,
            prepare: false,
            low_latency: false,
            background: false,
            handler: Handler::None,
            production: None,
            timestamps: false,
            capacity: 0,
            floor_batch: 1000,
            share: (0, 1),
        }
    }
}
