//! What an operator wants to know: how far a partition is, what holds it up, who works on it.

use std::time::{Duration, SystemTime};

use crate::backend::Backend;
use crate::error::OutboxError;
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};

/// The state of one partition, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// The queue.
    pub queue: String,
    /// The partition within the queue.
    pub partition: u32,
    /// The database's number of the partition.
    pub partition_id: i64,
    /// The last sequence number given out.
    pub last_seq: i64,
    /// Everything at or below this is settled.
    pub processed_seq: i64,
    /// Whether committed messages wait for their sequence number.
    pub unsequenced: bool,
    /// When the first message that is not settled was enqueued.
    pub head_created_at: Option<SystemTime>,
    /// How often that message was tried.
    pub attempts: u32,
    /// Why it was not settled.
    pub last_error: Option<String>,
    /// Whether the partition or its queue is paused.
    pub paused: bool,
    /// The process that holds it.
    pub holder: Option<String>,
    /// Until when the holder may keep it without a sign of life, by the database's clock.
    pub lease_until: Option<SystemTime>,
    /// How often it changed hands.
    pub epoch: i64,
    /// How many of its dead letters wait for somebody.
    pub dead_letters: u64,
}

impl PartitionStats {
    /// How many sequenced messages are not settled.
    pub fn pending(&self) -> i64 {
        self.last_seq - self.processed_seq
    }

    /// How long the first message that is not settled waits by now; nothing if there is none, or nobody wants
    /// it delivered because the partition is paused.
    pub fn waits(&self, now: SystemTime) -> Option<Duration> {
        let since = self.head_created_at.filter(|_| !self.paused)?;
        Some(now.duration_since(since).unwrap_or_default())
    }
}

/// Looking at the state of things.
impl<DB: Backend> Outbox<DB> {
    /// The state of every partition of the registered queues, by queue and partition. One statement
    /// that writes nothing.
    pub async fn stats(&self) -> Result<Vec<PartitionStats>, OutboxError> {
        let partition_ids = self.engine.partition_ids();
        let stats = DB::stats(&self.engine.store, &partition_ids);
        let stats = answer_within(OPERATOR_PATIENCE, stats).await?;
        self.engine.show(&stats);
        Ok(stats)
    }
}
