//! Removes settled messages in bounded steps, off the hot path, and keeps up while messages flow: it
//! is rung when something was settled, and rests for its pace between two rounds.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, PartitionId};
use crate::engine::{Engine, lock};
use crate::error::OutboxError;
use crate::patience::Patience;

/// How long one round may go on before others get the permit.
const ROUND: Duration = Duration::from_secs(1);
/// Fewer removals than this are no reason to give room back.
const WORTH_WHILE: u64 = 50_000;
/// How long that may take.
const RECLAIM: Duration = Duration::from_secs(60);
/// After how long it is tried again if somebody still saw what has gone, twice as long each time, and how
/// often: after a minute the database's own vacuum comes by.
const REST: Duration = Duration::from_secs(1);
const TRIES: u32 = 7;

#[derive(Debug)]
pub(crate) struct Vacuum<DB: Backend> {
    engine: Arc<Engine<DB>>,
    /// What is left of this round: at first everything, for nobody knows what an earlier life left.
    dirty: HashSet<PartitionId>,
    /// Not before this, however often it is rung.
    not_before: Instant,
    /// What was removed since room was last given back, and how much it takes for the next time.
    removed: u64,
    worth_while: Option<u64>,
    /// How often that was tried since, and when it is tried again.
    tries: u32,
    reclaim_at: Instant,
    patience: Patience,
}

impl<DB: Backend> Vacuum<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        let dirty = engine.partition_ids().into_iter().collect();
        Self {
            patience: engine.patience().with_long_work(),
            engine,
            dirty,
            not_before: Instant::now(),
            removed: 0,
            worth_while: Some(WORTH_WHILE),
            tries: 0,
            reclaim_at: Instant::now(),
        }
    }

    /// Whether there is much room to give back.
    fn is_worth_while(&self) -> bool {
        self.worth_while.is_some_and(|least| self.removed >= least)
    }

    async fn reclaim(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let rest = self.reclaim_at.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return Ok(Directive::Sleep(rest, 0));
        }
        let reclaim = timeout(RECLAIM, DB::reclaim(&self.engine.store));
        let answer = match cancel.run_until_cancelled(reclaim).await {
            Some(Ok(answer)) => answer,
            _ => Ok(Some(0)),
        };
        self.tries += 1;
        if matches!(answer, Err(_) | Ok(Some(1..))) && self.tries < TRIES {
            let rest = REST * (1 << (self.tries - 1));
            self.reclaim_at = Instant::now() + rest;
            return answer.map(|_| Directive::Sleep(rest, 0));
        }
        (self.removed, self.tries) = (0, 0);
        // What could not be given back is no reason to try after every burst.
        self.worth_while = answer?.map(|removals| removals.max(WORTH_WHILE));
        Ok(Directive::Idle(0))
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
            let began = Instant::now();
            let sweep = DB::sweep(&self.engine.store, partition_id, tuning.batch_size);
            match self.patience.hear(sweep).await {
                Ok(swept) => {
                    let meters = &self.engine.meters;
                    meters.vacuum.record(began.elapsed());
                    meters.swept.increment(swept.messages);
                    removed += swept.messages;
                    self.removed += swept.messages;
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
        match failed {
            Some(error) => Err(error),
            None if !self.is_worth_while() => Ok(Directive::Idle(removed)),
            // Not while messages flow: what lies behind them could not be given back.
            None if removed > 0 => Ok(Directive::Sleep(tuning.min_interval, removed)),
            None => self.reclaim(cancel).await,
        }
    }
}
