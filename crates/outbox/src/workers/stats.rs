//! Says how each queue is doing: in the metrics, and now and then in the log, for those who have nothing
//! else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use taskward::{Directive, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::OutboxError;
use crate::metrics::QueueStats;
use crate::patience::Patience;
use crate::stats::PartitionStats;

/// How often the state of the queues is published at least.
pub(crate) const PUBLISH: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Stats<DB: Backend> {
    engine: Arc<Engine<DB>>,
    patience: Patience,
    /// How often it is said in the log, and when next.
    interval: Duration,
    due: Instant,
}

impl<DB: Backend> Stats<DB> {
    pub(crate) fn new(engine: &Arc<Engine<DB>>, interval: Duration) -> Self {
        Self {
            patience: engine.patience(),
            engine: Arc::clone(engine),
            interval,
            due: after(interval),
        }
    }

    fn log(&self, stats: &[PartitionStats]) {
        let (incarnation, now) = (&*self.engine.incarnation.0, SystemTime::now());
        for partitions in stats.chunk_by(|one, next| one.queue == next.queue) {
            let own: Vec<_> = partitions.iter().collect();
            let queue = QueueStats::of(&own, incarnation, now);
            tracing::info!(
                queue = partitions[0].queue,
                pending = queue.pending,
                oldest_seconds = queue.oldest.as_secs(),
                held_here = queue.held_here,
                failing = queue.failing,
                paused = queue.paused,
                dead_letters = queue.dead_letters,
                "state of the queue"
            );
        }
    }
}

/// So long from now; a year if that is further than time goes.
fn after(interval: Duration) -> Instant {
    let now = Instant::now();
    let year = Duration::from_secs(365 * 86_400);
    now.checked_add(interval).unwrap_or_else(|| now + year)
}

impl<DB: Backend> WorkerAction for Stats<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, OutboxError> {
        let partition_ids = self.engine.partition_ids();
        let stats = DB::stats(&self.engine.store, &partition_ids);
        let stats = self.patience.hear(stats).await?;
        self.engine.show(&stats);
        if Instant::now() >= self.due {
            self.due = after(self.interval);
            self.log(&stats);
        }
        let storage = DB::storage(&self.engine.store);
        let bytes = self.patience.hear(storage).await?;
        self.engine.meters.takes_room(bytes);
        Ok(Directive::idle())
    }
}
