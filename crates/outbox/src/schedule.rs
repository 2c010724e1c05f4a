//! Which partition is sequenced next: oldest announcement first, one worker at a time, those that
//! failed after a rest. Plain state; whoever shares it puts a lock around it.
//!
//! ```text
//!             mark                  take                    done
//!   absent ─────────▶ waiting ─────────────────▶ taken ─────────────▶ absent
//!                        ▲                         │
//!                        ├── done with more, or marked meanwhile ─────┤
//!                        └── failed: waiting, but not before its rest ┘
//! ```

use std::collections::{BTreeMap, HashMap};

use tokio::time::{Duration, Instant};

use crate::backend::PartitionId;

#[derive(Debug)]
enum State {
    Waiting,
    Taken { marked_again: bool },
}

/// How the sequencing of a partition went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything has its number.
    Finished,
    /// There is more; others go first.
    More,
    /// Somebody else is at it: look again after this long.
    Busy(Duration),
    /// It failed: rest, longer each time.
    Failed,
}

/// The partitions that wait for a sequencer.
#[derive(Debug)]
pub(crate) struct Schedule {
    first_rest: Duration,
    longest_rest: Duration,
    waiting: BTreeMap<(Instant, u64), PartitionId>,
    states: HashMap<PartitionId, State>,
    failures: HashMap<PartitionId, u32>,
    announcements: u64,
}

impl Schedule {
    /// A partition that failed rests, twice as long each time.
    pub(crate) fn new(first_rest: Duration, longest_rest: Duration) -> Self {
        Self {
            first_rest,
            longest_rest,
            waiting: BTreeMap::new(),
            states: HashMap::new(),
            failures: HashMap::new(),
            announcements: 0,
        }
    }

    /// Announces work. Twice is once; while the partition is being sequenced it is remembered.
    pub(crate) fn mark(&mut self, partition_id: PartitionId, now: Instant) {
        match self.states.get_mut(&partition_id) {
            Some(State::Taken { marked_again }) => *marked_again = true,
            Some(State::Waiting) => {}
            None => self.wait(partition_id, now),
        }
    }

    fn wait(&mut self, partition_id: PartitionId, ready: Instant) {
        self.announcements += 1;
        let key = (ready, self.announcements);
        self.waiting.insert(key, partition_id);
        self.states.insert(partition_id, State::Waiting);
    }

    /// The partition whose work was announced first, of those that are not resting.
    pub(crate) fn take(&mut self, now: Instant) -> Option<PartitionId> {
        let (&key, &partition_id) = self.waiting.first_key_value()?;
        if key.0 > now {
            return None;
        }
        self.waiting.remove(&key);
        self.states.insert(
            partition_id,
            State::Taken {
                marked_again: false,
            },
        );
        Some(partition_id)
    }

    /// When the next partition can be taken, if any waits.
    pub(crate) fn next_ready(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((ready, _), _)| *ready)
    }

    /// Gives a taken partition back.
    pub(crate) fn done(&mut self, partition_id: PartitionId, outcome: Outcome, now: Instant) {
        let Some(State::Taken { marked_again }) = self.states.remove(&partition_id) else {
            return;
        };
        if outcome != Outcome::Failed {
            self.failures.remove(&partition_id);
        }
        match outcome {
            Outcome::Finished if !marked_again => {}
            Outcome::Finished | Outcome::More => self.wait(partition_id, now),
            Outcome::Busy(rest) => self.wait(partition_id, now + rest),
            Outcome::Failed => {
                let failures = self.failures.entry(partition_id).or_default();
                let rest = self
                    .first_rest
                    .saturating_mul(1 << (*failures).min(20))
                    .min(self.longest_rest);
                *failures = failures.saturating_add(1);
                self.wait(partition_id, now + rest);
            }
        }
    }

    /// The database answers again: nobody needs to rest any longer.
    pub(crate) fn end_rests(&mut self, now: Instant) {
        self.failures.clear();
        for (key, partition_id) in std::mem::take(&mut self.waiting) {
            self.waiting.insert((key.0.min(now), key.1), partition_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(30);

    fn schedule() -> Schedule {
        Schedule::new(FIRST, LONGEST)
    }

    const A: PartitionId = PartitionId(1);
    const B: PartitionId = PartitionId(2);
    const C: PartitionId = PartitionId(3);

    #[test]
    fn the_oldest_announcement_goes_first_and_a_second_one_changes_nothing() {
        let (mut schedule, now) = (schedule(), Instant::now());
        for partition in [B, A, B, C] {
            schedule.mark(partition, now);
        }
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(now)).collect();
        assert_eq!(taken, [B, A, C]);
    }

    #[test]
    fn work_announced_while_a_partition_is_sequenced_is_not_lost() {
        let (mut schedule, now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        assert_eq!(schedule.take(now), Some(A));
        schedule.mark(A, now);
        assert_eq!(schedule.take(now), None, "one worker at a time");
        schedule.done(A, Outcome::Finished, now);
        assert_eq!(schedule.take(now), Some(A));
        schedule.done(A, Outcome::Finished, now);
        assert_eq!(schedule.take(now), None);
    }

    #[test]
    fn a_partition_with_more_lets_the_others_go_first() {
        let (mut schedule, now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        schedule.mark(B, now);
        assert_eq!(schedule.take(now), Some(A));
        schedule.done(A, Outcome::More, now);
        assert_eq!(schedule.take(now), Some(B));
        assert_eq!(schedule.take(now), Some(A));
    }

    #[test]
    fn one_that_fails_rests_longer_each_time_and_holds_up_nobody() {
        let (mut schedule, mut now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        for millis in [
            100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000,
        ] {
            assert_eq!(schedule.take(now), Some(A));
            schedule.done(A, Outcome::Failed, now);
            schedule.mark(B, now);
            assert_eq!(schedule.take(now), Some(B), "B does not wait for A");
            schedule.done(B, Outcome::Finished, now);
            let ready = now + Duration::from_millis(millis);
            assert_eq!(schedule.next_ready(), Some(ready));
            assert_eq!(schedule.take(ready - Duration::from_millis(1)), None);
            now = ready;
        }
        assert_eq!(schedule.take(now), Some(A));
        schedule.done(A, Outcome::Finished, now);
        schedule.mark(A, now);
        assert_eq!(schedule.take(now), Some(A));
        schedule.done(A, Outcome::Failed, now);
        assert_eq!(
            schedule.next_ready(),
            Some(now + FIRST),
            "a success resets the rest"
        );
    }

    #[test]
    fn when_the_database_answers_again_nobody_rests() {
        let (mut schedule, now) = (schedule(), Instant::now());
        for _ in 0..50 {
            schedule.mark(A, now);
            schedule.end_rests(now);
            assert_eq!(schedule.take(now), Some(A));
            schedule.done(A, Outcome::Failed, now);
        }
        schedule.end_rests(now);
        assert_eq!(schedule.take(now), Some(A));
    }
}
