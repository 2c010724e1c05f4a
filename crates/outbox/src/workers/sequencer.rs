//! Gives committed messages their numbers, oldest announcement first: many partitions in one step while
//! there is little in each, one at a time while there is much.

use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, Pace, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::backend::{Backend, PartitionId, Sequenced, Stride};
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

/// Partitions taken from the schedule; they go back if the worker dies with them.
struct Taken<DB: Backend> {
    engine: Arc<Engine<DB>>,
    partitions: Vec<PartitionId>,
    /// How often the one that is taken has failed in a row; several together have not.
    failures: u32,
    /// How it went with those that are left.
    outcome: Outcome,
}

impl<DB: Backend> Taken<DB> {
    fn new(engine: &Arc<Engine<DB>>, most: usize) -> Self {
        let now = engine.clock.now();
        let mut schedule = lock(&engine.schedule);
        if let Some(due) = schedule.next_ready().filter(|due| *due <= now) {
            engine.meters.sequencer_woken.record(now - due);
        }
        let partitions = schedule.take(most, now);
        let failures = partitions.first().map_or(0, |id| schedule.failures(*id));
        let more = schedule.next_ready().is_some();
        drop(schedule);
        if more && !partitions.is_empty() {
            // Another worker takes the next ones meanwhile, or waits for them.
            engine.sequencer_bell.notify_one();
        }
        Self {
            engine: Arc::clone(engine),
            partitions,
            failures,
            outcome: Outcome::Failed,
        }
    }

    /// Gives one back.
    fn done(&mut self, partition_id: PartitionId, outcome: Outcome) {
        self.partitions.retain(|taken| *taken != partition_id);
        let now = self.engine.clock.now();
        lock(&self.engine.schedule).done(partition_id, outcome, now);
    }
}

impl<DB: Backend> Drop for Taken<DB> {
    fn drop(&mut self) {
        for partition_id in std::mem::take(&mut self.partitions) {
            self.done(partition_id, self.outcome);
            // Whoever died with it does not come for it again.
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
        if rest == Some(Duration::ZERO) && left == 0 {
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
            patience: engine.patience().with_long_work(),
            pace: Pace::new(engine.profile.sequencer.into()),
            share: 1,
            looked: Instant::now(),
            engine,
        }
    }

    async fn sequence(&mut self, mut taken: Taken<DB>) -> u64 {
        let config = self.engine.sequencer;
        // What was too much is tried again with less.
        let stride = match taken.failures {
            0 => Stride::Growing,
            _ => Stride::Even,
        };
        let mut total = 0;
        for _ in 0..config.max_inner_iterations {
            taken.outcome = Outcome::Failed;
            let limit = config.batch_size;
            let step = DB::sequence(&self.engine.store, &taken.partitions, limit, stride);
            let began = Instant::now();
            let span = tracing::info_span!("outbox.sequence", partitions = taken.partitions.len());
            let step = step.instrument(span);
            let answers = match self.patience.after(taken.failures).hear(step).await {
                Ok(answers) => {
                    let took = began.elapsed();
                    self.engine.meters.sequencer.record(took);
                    lock(&self.engine.schedule).took(took);
                    answers
                }
                Err(error) => {
                    let partitions: Vec<_> = taken.partitions.iter().map(|id| id.0).collect();
                    tracing::warn!(?partitions, %error, "sequencing failed");
                    break;
                }
            };
            let step = self.note(&mut taken, &answers);
            // Who is busy did not say how much there is.
            if answers.iter().any(|(_, answer)| *answer != Sequenced::Busy) {
                self.share = share(config.batch_size, step, answers.len());
            }
            total += step;
            // What is left has more.
            taken.outcome = Outcome::More;
            if taken.partitions.is_empty() {
                break;
            }
        }
        total
    }

    /// Tells whoever should know, gives back what has no more, and counts.
    fn note(&self, taken: &mut Taken<DB>, answers: &[(PartitionId, Sequenced)]) -> u64 {
        let mut total = 0;
        for &(partition_id, sequenced) in answers {
            match sequenced {
                Sequenced::Busy => taken.done(partition_id, Outcome::Busy(LOOK_AGAIN)),
                Sequenced::ForeignIds => {
                    let error = OutboxError::foreign_ids(partition_id);
                    tracing::warn!(partition_id = partition_id.0, %error, "sequencing failed");
                    taken.done(partition_id, Outcome::Failed);
                }
                Sequenced::Done { count, more } => {
                    total += u64::from(count);
                    if count > 0 {
                        if let Some(queue) = self.engine.queue_of.get(&partition_id) {
                            queue.meters.sequenced.increment(count.into());
                        }
                        self.engine.note_sequenced(partition_id);
                    } else {
                        // Another process was faster: what it sequenced may be for us.
                        self.engine.ring(partition_id);
                    }
                    if !more {
                        taken.done(partition_id, Outcome::Finished);
                    }
                }
            }
        }
        total
    }
}

/// How many partitions make up a batch if each has as much as these had.
fn share(batch_size: u32, messages: u64, partitions: usize) -> usize {
    let share = u64::from(batch_size) * partitions as u64 / messages.max(1);
    usize::try_from(share).unwrap_or(usize::MAX).max(1)
}
