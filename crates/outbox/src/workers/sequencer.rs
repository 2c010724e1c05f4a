//! Gives committed messages their numbers, partition by partition, oldest announcement first.

use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, Pace, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, PartitionId, Sequenced};
use crate::engine::{Engine, lock};
use crate::error::OutboxError;
use crate::patience::Patience;
use crate::schedule::Outcome;

/// When another sequencer has the partition: it may have looked just before our message was there.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Sequencer<DB: Backend> {
    engine: Arc<Engine<DB>>,
    patience: Patience,
    pace: Pace,
    /// When everything was last looked at without being told to.
    looked: Instant,
}

/// A partition taken from the schedule; goes back if the worker dies with it.
struct Taken<'a, DB: Backend> {
    engine: &'a Engine<DB>,
    partition_id: PartitionId,
    outcome: Outcome,
}

impl<DB: Backend> Drop for Taken<'_, DB> {
    fn drop(&mut self) {
        let now = self.engine.clock.now();
        lock(&self.engine.schedule).done(self.partition_id, self.outcome, now);
    }
}

impl<DB: Backend> WorkerAction for Sequencer<DB> {
    /// How many messages got their number.
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        if self.looked.elapsed() >= self.engine.sequencer.poll_interval {
            self.looked = Instant::now();
            self.engine.mark(self.engine.partition_ids());
        }
        let mut sequenced = 0;
        for _ in 0..self.engine.sequencer.partition_batch_limit {
            let partition_id = lock(&self.engine.schedule).take(self.engine.clock.now());
            let Some(partition_id) = partition_id.filter(|_| !cancel.is_cancelled()) else {
                break;
            };
            // Another worker may take the next one meanwhile.
            self.engine.sequencer_bell.notify_one();
            sequenced += self.sequence(partition_id).await;
        }
        let ready = lock(&self.engine.schedule).next_ready();
        let rest = ready.map(|ready| ready.saturating_duration_since(self.engine.clock.now()));
        if rest == Some(Duration::ZERO) {
            // There is more: at our pace, which a new announcement cuts short.
            return Ok(Directive::Sleep(self.pace.step(), sequenced));
        }
        self.pace.restart();
        Ok(match rest {
            None => Directive::Idle(sequenced),
            Some(rest) => Directive::Sleep(rest, sequenced),
        })
    }
}

impl<DB: Backend> Sequencer<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        Self {
            patience: engine.patience(),
            pace: Pace::new(engine.profile.sequencer.into()),
            looked: Instant::now(),
            engine,
        }
    }

    async fn sequence(&mut self, partition_id: PartitionId) -> u64 {
        let engine = Arc::clone(&self.engine);
        // If this worker dies on the way, the partition goes back as one that failed.
        let mut taken = Taken {
            engine: &engine,
            partition_id,
            outcome: Outcome::Failed,
        };
        let (total, outcome) = self.steps(partition_id).await;
        taken.outcome = outcome;
        total
    }

    async fn steps(&mut self, partition_id: PartitionId) -> (u64, Outcome) {
        let engine = &*self.engine;
        let mut total = 0;
        for _ in 0..engine.sequencer.max_inner_iterations {
            let step = DB::sequence(&engine.store, partition_id, engine.sequencer.batch_size);
            match self.patience.hear(step).await {
                Ok(Sequenced::Busy) => return (total, Outcome::Busy(LOOK_AGAIN)),
                Ok(Sequenced::Done { count, more }) => {
                    total += u64::from(count);
                    if count > 0 {
                        engine.note_sequenced(partition_id);
                    } else {
                        // Another process was faster: what it sequenced may be for us.
                        engine.ring(partition_id);
                    }
                    if !more {
                        return (total, Outcome::Finished);
                    }
                }
                Err(error) => {
                    tracing::warn!(partition_id = partition_id.0, %error, "sequencing failed");
                    return (total, Outcome::Failed);
                }
            }
        }
        (total, Outcome::More)
    }
}
