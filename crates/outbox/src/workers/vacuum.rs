//! Removes settled messages in bounded steps, off the hot path, and keeps up while messages flow: it
//! is rung when something was settled, and rests for its pace between two rounds.

mod line;

use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Reclaimed, Swept};
use crate::engine::{Engine, lock};
use crate::error::OutboxError;
use crate::patience::Patience;
use line::Line;

/// How long one round may go on before others get the permit.
const ROUND: Duration = Duration::from_secs(1);
/// Fewer removals than this are no reason to give room back.
const WORTH_WHILE: u64 = 50_000;
/// How long that may take.
const RECLAIM: Duration = Duration::from_secs(60);
/// After how long it is tried again if it failed or somebody still saw what has gone, twice as long each
/// time, and how often: after a minute the database's own vacuum comes by.
const REST: Duration = Duration::from_secs(1);
const TRIES: u32 = 7;

#[derive(Debug)]
pub(crate) struct Vacuum<DB: Backend> {
    engine: Arc<Engine<DB>>,
    /// Where to go: at first everywhere, for nobody knows what an earlier life left.
    line: Line,
    /// Not before this, however often it is rung.
    not_before: Instant,
    room: Room,
    patience: Patience,
}

impl<DB: Backend> Vacuum<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        let mut line = Line::default();
        line.join(engine.partition_ids());
        Self {
            patience: engine.patience().with_long_work(),
            engine,
            line,
            not_before: Instant::now(),
            room: Room::new(Instant::now()),
        }
    }

    async fn reclaim(&mut self, cancel: &CancellationToken) -> Directive<u64> {
        let rest = self.room.at.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return Directive::Sleep(rest, 0);
        }
        let reclaim = timeout(RECLAIM, DB::reclaim(&self.engine.store));
        let attempt = match cancel.run_until_cancelled(reclaim).await {
            None => return Directive::Idle(0),
            Some(Ok(Ok(reclaimed))) => Attempt::Made(reclaimed),
            Some(Ok(Err(error))) => {
                tracing::warn!(%error, "room could not be given back");
                Attempt::Failed
            }
            Some(Err(_)) => {
                tracing::warn!("giving room back took longer than {RECLAIM:?}");
                Attempt::TookTooLong
            }
        };
        match self.room.tried(attempt, Instant::now()) {
            Some(rest) => Directive::Sleep(rest, 0),
            None => Directive::Idle(0),
        }
    }
}

/// When room is given back.
#[derive(Debug)]
struct Room {
    /// What was removed since it was last given back, and how much it takes for the next time.
    removed: u64,
    worth_while: Option<u64>,
    /// How often that was tried since, when it is tried again, and what was removed since the last try.
    tries: u32,
    at: Instant,
    untried: u64,
}

/// How giving room back went.
#[derive(Debug, Clone, Copy)]
enum Attempt {
    Made(Option<Reclaimed>),
    Failed,
    TookTooLong,
}

impl Room {
    fn new(now: Instant) -> Self {
        Self {
            removed: 0,
            worth_while: Some(WORTH_WHILE),
            tries: 0,
            at: now,
            untried: 0,
        }
    }

    /// Messages have gone. Many more than at the last try are worth as many tries again; a few are not,
    /// or whoever holds room for long would have it tried for as long.
    fn removed(&mut self, messages: u64, now: Instant) {
        self.removed += messages;
        self.untried += messages;
        if self.untried >= WORTH_WHILE {
            (self.tries, self.at) = (0, now);
        }
    }

    /// Whether there is much to give back.
    fn is_worth_while(&self) -> bool {
        self.worth_while.is_some_and(|least| self.removed >= least)
    }

    /// Answers after how long to try again, if at all.
    fn tried(&mut self, attempt: Attempt, now: Instant) -> Option<Duration> {
        self.tries += 1;
        self.untried = 0;
        let again = match attempt {
            Attempt::Made(reclaimed) => reclaimed.is_some_and(|reclaimed| reclaimed.held),
            Attempt::Failed => true,
            Attempt::TookTooLong => false,
        };
        if again && self.tries < TRIES {
            let rest = REST * (1 << (self.tries - 1));
            self.at = now + rest;
            return Some(rest);
        }
        (self.removed, self.tries) = (0, 0);
        if let Attempt::Made(reclaimed) = attempt {
            // What could not be given back is no reason to try after every burst.
            self.worth_while = reclaimed.map(|it| it.worth_while.max(WORTH_WHILE));
        }
        None
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
        let tuning = self.engine.profile.vacuum;
        self.not_before = started + tuning.min_interval;
        self.line
            .join(std::mem::take(&mut *lock(&self.engine.settled)));
        let mut round = Round::default();
        let mut due = self.line.due(started);
        while let Some(partition_id) = due.pop_front() {
            if cancel.is_cancelled() || started.elapsed() >= ROUND {
                round.cut_short = true;
                break;
            }
            let limit = self.line.limit(partition_id, tuning.batch_size);
            let failures = self.line.failures(partition_id);
            let began = Instant::now();
            let sweep = DB::sweep(&self.engine.store, partition_id, limit);
            match self.patience.after(failures).hear(sweep).await {
                Ok(swept) => {
                    let meters = &self.engine.meters;
                    meters.vacuum.record(began.elapsed());
                    meters.swept.increment(swept.messages);
                    self.room.removed(swept.messages, Instant::now());
                    self.line.swept(partition_id, swept, tuning.batch_size);
                    round.swept(swept);
                    if swept.more {
                        due.push_back(partition_id);
                    }
                }
                // The others go on.
                Err(error) => {
                    tracing::warn!(partition_id = partition_id.0, %error, "the vacuum failed");
                    self.line.failed(partition_id, &tuning, Instant::now());
                    round.failed = Some(error);
                }
            }
        }
        let removed = round.removed;
        if let Some(error) = round.error() {
            // After its rest it tries again, whoever rings.
            self.engine.vacuum_bell.notify_one();
            return Err(error);
        }
        if round.cut_short {
            return Ok(Directive::Proceed(removed));
        }
        if round.busy {
            return Ok(Directive::Sleep(tuning.min_interval, removed));
        }
        match self.line.rest(Instant::now()) {
            Some(rest) => Ok(Directive::Sleep(rest, removed)),
            None if !self.room.is_worth_while() => Ok(Directive::Idle(removed)),
            // Not while messages flow: what lies behind them could not be given back.
            None if removed > 0 => Ok(Directive::Sleep(tuning.min_interval, removed)),
            None => Ok(self.reclaim(cancel).await),
        }
    }
}

/// How a round went.
#[derive(Debug, Default)]
struct Round {
    removed: u64,
    answered: bool,
    /// Whoever is at it may have begun before the last was settled.
    busy: bool,
    failed: Option<OutboxError>,
    /// Its time was up before everybody had a turn.
    cut_short: bool,
}

impl Round {
    fn swept(&mut self, swept: Swept) {
        self.removed += swept.messages;
        self.answered = true;
        self.busy |= swept.busy;
    }

    /// What is wrong with the database, and not with one partition alone: that one rests by itself.
    fn error(&mut self) -> Option<OutboxError> {
        self.failed.take_if(|_| !self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(worth_while: u64, held: bool) -> Attempt {
        Attempt::Made(Some(Reclaimed { worth_while, held }))
    }

    fn full(now: Instant) -> Room {
        let mut room = Room::new(now);
        room.removed(WORTH_WHILE, now);
        assert!(room.is_worth_while());
        room
    }

    #[test]
    fn a_round_in_which_nobody_answered_is_an_error_also_when_its_time_was_up() {
        let failed = || Round {
            failed: Some(sqlx::Error::PoolTimedOut.into()),
            cut_short: true,
            ..Round::default()
        };
        assert!(failed().error().is_some());
        let mut round = failed();
        round.swept(Swept::default());
        assert!(round.error().is_none(), "the one that failed rests");
        assert!(Round::default().error().is_none());
    }

    #[test]
    fn room_that_is_held_or_could_not_be_given_back_is_tried_again_for_a_minute() {
        let now = Instant::now();
        for attempt in [Attempt::Failed, made(7, true)] {
            let mut room = full(now);
            let rests = std::iter::from_fn(|| room.tried(attempt, now));
            let seconds: Vec<_> = rests.map(|rest| rest.as_secs()).collect();
            assert_eq!(seconds, [1, 2, 4, 8, 16, 32]);
            assert!(!room.is_worth_while());
        }
    }

    #[test]
    fn room_that_others_need_is_not_tried_again() {
        let now = Instant::now();
        let mut room = full(now);
        assert_eq!(room.tried(made(2 * WORTH_WHILE, false), now), None);
        room.removed(WORTH_WHILE, now);
        assert!(!room.is_worth_while(), "there is more that stays");
        room.removed(WORTH_WHILE, now);
        assert!(room.is_worth_while());
        assert_eq!(room.tried(Attempt::Made(None), now), None);
        room.removed(u64::MAX / 2, now);
        assert!(!room.is_worth_while(), "never");
    }

    #[test]
    fn what_took_too_long_is_as_much_work_the_next_time() {
        let now = Instant::now();
        let mut room = full(now);
        room.tried(made(2 * WORTH_WHILE, false), now);
        room.removed(2 * WORTH_WHILE, now);
        assert_eq!(room.tried(Attempt::TookTooLong, now), None);
        room.removed(WORTH_WHILE, now);
        assert!(!room.is_worth_while());
    }

    #[test]
    fn another_burst_that_has_gone_begins_anew() {
        let now = Instant::now();
        let mut room = full(now);
        for _ in 0..5 {
            room.tried(made(0, true), now);
        }
        assert_eq!(room.at, now + 16 * REST);
        room.removed(WORTH_WHILE - 1, now);
        assert_eq!(room.at, now + 16 * REST);
        room.removed(1, now);
        assert_eq!(room.at, now);
        assert_eq!(room.tried(made(0, true), now), Some(REST));
    }
}
