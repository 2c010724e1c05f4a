//! Removes settled messages in bounded steps, off the hot path, and keeps up while messages flow: it
//! is rung when something was settled, and rests for its pace between two rounds.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, PartitionId};
use crate::engine::{Engine, lock};
use crate::error::OutboxError;
use crate::patience::Patience;

/// How long one round may go on before others get the permit.
const ROUND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Vacuum<DB: Backend> {
    engine: Arc<Engine<DB>>,
    /// What is left of this round: at first everything, for nobody knows what an earlier life left.
    dirty: HashSet<PartitionId>,
    /// Not before this, however often it is rung.
    not_before: Instant,
    patience: Patience,
}

impl<DB: Backend> Vacuum<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        let dirty = engine.partition_ids().into_iter().collect();
        Self {
            patience: engine.patience(),
            engine,
            dirty,
            not_before: Instant::now(),
        }
    }
}

impl<DB: Backend> WorkerAction for Vacuum<DB> {
    /// How many messages were removed.
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let started = Instant::now();
        let rest = self.not_before.saturating_duration_since(started);
        if !rest.is_zero() {
            return Ok(Directive::Sleep(rest, 0));
        }
        let tuning = &self.engine.profile.vacuum;
        self.not_before = started + tuning.min_interval;
        self.dirty
            .extend(std::mem::take(&mut *lock(&self.engine.settled)));
        let (mut removed, mut failed) = (0, None);
        let mut due: VecDeque<PartitionId> = self.dirty.iter().copied().collect();
        while let Some(partition_id) = due.pop_front() {
            if cancel.is_cancelled() || started.elapsed() >= ROUND {
                return Ok(Directive::Proceed(removed));
            }
            let sweep = DB::sweep(&self.engine.store, partition_id, tuning.batch_size);
            match self.patience.hear(sweep).await {
                Ok(swept) => {
                    removed += swept.messages;
                    if swept.more {
                        due.push_back(partition_id);
                    } else {
                        self.dirty.remove(&partition_id);
                    }
                }
                // The others go on; this one stays for the next round.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(Directive::Idle(removed)), Err)
    }
}
