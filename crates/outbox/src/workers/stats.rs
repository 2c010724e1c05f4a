//! Says now and then, in the log, how each queue is doing: the answer to "is it keeping up?" for those
//! who have nothing but a log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use taskward::{Directive, WorkerAction};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::OutboxError;
use crate::patience::Patience;
use crate::stats::PartitionStats;

#[derive(Debug)]
pub(crate) struct Stats<DB: Backend> {
    pub(crate) engine: Arc<Engine<DB>>,
    pub(crate) patience: Patience,
}

impl<DB: Backend> WorkerAction for Stats<DB> {
    type Payload = Vec<QueueStats>;
    type Error = OutboxError;

    async fn execute(
        &mut self,
        _: &CancellationToken,
    ) -> Result<Directive<Vec<QueueStats>>, OutboxError> {
        let partition_ids = self.engine.partition_ids();
        let stats = DB::stats(&self.engine.store, &partition_ids);
        let stats = self.patience.hear(stats).await?;
        let queues = by_queue(&stats, &self.engine.incarnation.0, SystemTime::now());
        for queue in &queues {
            tracing::info!(
                queue = queue.name,
                pending = queue.pending,
                oldest_seconds = queue.oldest_seconds,
                held_here = queue.held_here,
                failing = queue.failing,
                paused = queue.paused,
                dead_letters = queue.dead_letters,
                "state of the queue"
            );
        }
        Ok(Directive::Idle(queues))
    }
}

/// The partitions of a queue, added up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct QueueStats {
    name: String,
    pending: i64,
    /// The age of the oldest head, by this machine's clock.
    oldest_seconds: u64,
    /// Partitions that this process holds.
    held_here: u32,
    /// Partitions whose head has failed at least once.
    failing: u32,
    paused: u32,
    dead_letters: u64,
}

fn by_queue(stats: &[PartitionStats], incarnation: &str, now: SystemTime) -> Vec<QueueStats> {
    let mut queues: BTreeMap<&str, QueueStats> = BTreeMap::new();
    for partition in stats {
        let queue = queues.entry(&partition.queue).or_default();
        queue.name.clone_from(&partition.queue);
        queue.pending += partition.pending();
        let age = partition
            .head_created_at
            .and_then(|at| now.duration_since(at).ok())
            .map_or(0, |age| age.as_secs());
        queue.oldest_seconds = queue.oldest_seconds.max(age);
        queue.held_here += u32::from(partition.holder.as_deref() == Some(incarnation));
        queue.failing += u32::from(partition.attempts > 0);
        queue.paused += u32::from(partition.paused);
        queue.dead_letters += partition.dead_letters;
    }
    queues.into_values().collect()
}
