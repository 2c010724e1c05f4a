//! Gives committed messages their numbers, oldest announcement first: many partitions in one step while
//! there is little in each, one at a time while there is much.

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
    /// How many partitions to take at once: as many as make up a batch, going by the last step.
    share: usize,
    /// When everything was last looked at without being told to.
    looked: Instant,
}

/// Partitions taken from the schedule, and how it went; they go back if the worker dies with them.
struct Taken<DB: Backend> {
    engine: Arc<Engine<DB>>,
    partitions: Vec<(PartitionId, Outcome)>,
}

impl<DB: Backend> Taken<DB> {
    fn new(engine: &Arc<Engine<DB>>, most: usize) -> Self {
        let now = engine.clock.now();
        let mut schedule = lock(&engine.schedule);
        let partitions = schedule.take(most, now);
        let more = schedule.next_ready().is_some_and(|ready| ready <= now);
        drop(schedule);
        if more {
            // Another worker may take the next ones meanwhile.
            engine.sequencer_bell.notify_one();
        }
        let failed = |partition_id| (partition_id, Outcome::Failed);
        Self {
            engine: Arc::clone(engine),
            partitions: partitions.into_iter().map(failed).collect(),
        }
    }

    fn note(&mut self, partition_id: PartitionId, outcome: Outcome) {
        for taken in &mut self.partitions {
            if taken.0 == partition_id {
                taken.1 = outcome;
            }
        }
    }
}

impl<DB: Backend> Drop for Taken<DB> {
    fn drop(&mut self) {
        let now = self.engine.clock.now();
        let mut failed = false;
        let mut schedule = lock(&self.engine.schedule);
        for (partition_id, outcome) in &self.partitions {
            schedule.done(*partition_id, *outcome, now);
            failed |= *outcome == Outcome::Failed;
        }
        drop(schedule);
        if failed {
            // Whoever died with them waits for no rest of theirs.
            self.engine.sequencer_bell.notify_one();
        }
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
        let mut left = self.engine.sequencer.partition_batch_limit as usize;
        while left > 0 && !cancel.is_cancelled() {
            let taken = Taken::new(&self.engine, self.share.min(left));
            if taken.partitions.is_empty() {
                break;
            }
            left -= taken.partitions.len();
            sequenced += self.sequence(taken).await;
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
            share: 1,
            looked: Instant::now(),
            engine,
        }
    }

    async fn sequence(&mut self, mut taken: Taken<DB>) -> u64 {
        let engine = Arc::clone(&self.engine);
        let ids = taken.partitions.iter().map(|(id, _)| *id);
        let (mut rest, mut total) = (ids.collect::<Vec<_>>(), 0);
        for _ in 0..engine.sequencer.max_inner_iterations {
            let step = DB::sequence(&engine.store, &rest, engine.sequencer.batch_size);
            let answers = match self.patience.hear(step).await {
                Ok(answers) => answers,
                Err(error) => {
                    let partitions: Vec<_> = rest.iter().map(|id| id.0).collect();
                    tracing::warn!(?partitions, %error, "sequencing failed");
                    for partition_id in rest {
                        taken.note(partition_id, Outcome::Failed);
                    }
                    return total;
                }
            };
            let step = self.note(&mut taken, &answers);
            self.share = share(engine.sequencer.batch_size, step, rest.len());
            total += step;
            rest.retain(|id| taken.partitions.contains(&(*id, Outcome::More)));
            if rest.is_empty() {
                break;
            }
        }
        total
    }

    /// Tells whoever should know, and counts.
    fn note(&self, taken: &mut Taken<DB>, answers: &[(PartitionId, Sequenced)]) -> u64 {
        let mut total = 0;
        for &(partition_id, sequenced) in answers {
            let outcome = match sequenced {
                Sequenced::Busy => Outcome::Busy(LOOK_AGAIN),
                Sequenced::ForeignIds => {
                    let error = OutboxError::foreign_ids(partition_id);
                    tracing::warn!(partition_id = partition_id.0, %error, "sequencing failed");
                    Outcome::Failed
                }
                Sequenced::Done { count, more } => {
                    total += u64::from(count);
                    if count > 0 {
                        self.engine.note_sequenced(partition_id);
                    } else {
                        // Another process was faster: what it sequenced may be for us.
                        self.engine.ring(partition_id);
                    }
                    if more {
                        Outcome::More
                    } else {
                        Outcome::Finished
                    }
                }
            };
            taken.note(partition_id, outcome);
        }
        total
    }
}

/// How many partitions make up a batch if each has as much as these had.
fn share(batch_size: u32, messages: u64, partitions: usize) -> usize {
    let share = u64::from(batch_size) * partitions as u64 / messages.max(1);
    usize::try_from(share).unwrap_or(usize::MAX).max(1)
}
