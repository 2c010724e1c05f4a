//! Which partitions are sequenced next: oldest announcement first, one worker at a time, those that
//! failed after a rest and by themselves. Plain state; whoever shares it puts a lock around it.
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
use crate::tuning::WorkerTuning;

/// How long a step may wait for each message that a batch has room for: a batch is worth waiting for,
/// a larger one for longer, but not for
const WORTH_WAITING: Duration = Duration::from_micros(20);
/// longer than this.
const LONGEST_BEAT: Duration = Duration::from_millis(40);
/// A step that takes long is followed by a rest of so many times as long: a database that is slow, or
/// has to wade through what a forgotten transaction keeps alive, gets fewer and larger steps,
const REST_FOR_STEP: u32 = 4;
/// but not fewer than this.
const LONGEST_STRETCH: Duration = Duration::from_millis(250);

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

/// How far apart the steps of a partition are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spacing {
    /// A partition that has just been sequenced waits for the next beat of this length, and so do all
    /// others: what is announced between two beats is done in one step.
    pub(crate) beat: Duration,
    /// How long one that failed rests, twice as long each time,
    pub(crate) first_rest: Duration,
    /// up to this.
    pub(crate) longest_rest: Duration,
}

impl From<&WorkerTuning> for Spacing {
    fn from(tuning: &WorkerTuning) -> Self {
        let worth = WORTH_WAITING.saturating_mul(tuning.batch_size);
        Self {
            beat: worth.min(tuning.active_interval).min(LONGEST_BEAT),
            first_rest: tuning.retry_base,
            longest_rest: tuning.retry_max,
        }
    }
}

/// The partitions that wait for a sequencer.
#[derive(Debug)]
pub(crate) struct Schedule {
    spacing: Spacing,
    /// The beat, as long as the last step makes it.
    beat: Duration,
    began: Instant,
    waiting: BTreeMap<(Instant, u64), PartitionId>,
    states: HashMap<PartitionId, State>,
    failures: HashMap<PartitionId, u32>,
    finished: HashMap<PartitionId, Instant>,
    announcements: u64,
}

impl Schedule {
    pub(crate) fn new(spacing: Spacing, now: Instant) -> Self {
        Self {
            beat: spacing.beat,
            spacing,
            began: now,
            waiting: BTreeMap::new(),
            states: HashMap::new(),
            failures: HashMap::new(),
            finished: HashMap::new(),
            announcements: 0,
        }
    }

    /// Announces work. Twice is once; while the partition is being sequenced it is remembered. Answers
    /// whether a sequencer has to be told: it is the first that waits, or nobody came for the first.
    pub(crate) fn mark(&mut self, partition_id: PartitionId, now: Instant) -> bool {
        match self.states.get_mut(&partition_id) {
            Some(State::Taken { marked_again }) => *marked_again = true,
            Some(State::Waiting) => {}
            None => {
                let first = self.next_ready();
                let ready = self.after_a_beat(partition_id, now);
                self.wait(partition_id, ready);
                return first.is_none_or(|first| ready < first || first <= now);
            }
        }
        false
    }

    fn wait(&mut self, partition_id: PartitionId, ready: Instant) {
        self.announcements += 1;
        let key = (ready, self.announcements);
        self.waiting.insert(key, partition_id);
        self.states.insert(partition_id, State::Waiting);
    }

    /// At once, or with the next beat if it was sequenced less than one ago.
    fn after_a_beat(&self, partition_id: PartitionId, now: Instant) -> Instant {
        let beat = self.beat;
        match self.finished.get(&partition_id) {
            Some(finished) if now < *finished + beat => {
                let since = (now - self.began).as_nanos();
                let rest = beat.as_nanos() - since % beat.as_nanos();
                now + Duration::from_nanos(u64::try_from(rest).unwrap_or(0))
            }
            _ => now,
        }
    }

    /// The partitions whose work was announced first, of those that are not resting; at most so many.
    /// One that has failed comes alone, so that it fails nobody else.
    pub(crate) fn take(&mut self, most: usize, now: Instant) -> Vec<PartitionId> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((&key, &partition_id)) = self.waiting.first_key_value()
            && key.0 <= now
        {
            let failed = self.failures.contains_key(&partition_id);
            if failed && !taken.is_empty() {
                break;
            }
            self.waiting.remove(&key);
            let marked_again = false;
            self.states
                .insert(partition_id, State::Taken { marked_again });
            taken.push(partition_id);
            if failed {
                break;
            }
        }
        taken
    }

    /// How often a partition has failed in a row.
    pub(crate) fn failures(&self, partition_id: PartitionId) -> u32 {
        self.failures.get(&partition_id).copied().unwrap_or(0)
    }

    /// A step took so long.
    pub(crate) fn took(&mut self, time: Duration) {
        let rest = time.saturating_mul(REST_FOR_STEP).min(LONGEST_STRETCH);
        self.beat = self.spacing.beat.max(rest);
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
        // Somebody else who is at it may be what is left of a step of ours that took too long.
        if matches!(outcome, Outcome::Finished | Outcome::More) {
            self.failures.remove(&partition_id);
        }
        match outcome {
            Outcome::Finished => {
                self.finished.insert(partition_id, now);
                if marked_again {
                    self.wait(partition_id, self.after_a_beat(partition_id, now));
                }
            }
            Outcome::More => self.wait(partition_id, now),
            Outcome::Busy(rest) => self.wait(partition_id, now + rest),
            Outcome::Failed => {
                let failures = self.failures.entry(partition_id).or_default();
                let rest = self
                    .spacing
                    .first_rest
                    .saturating_mul(1 << (*failures).min(20))
                    .min(self.spacing.longest_rest);
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

    const BEAT: Duration = Duration::from_millis(10);

    fn spaced(beat: Duration) -> Schedule {
        let (first_rest, longest_rest) = (FIRST, LONGEST);
        let spacing = Spacing {
            beat,
            first_rest,
            longest_rest,
        };
        Schedule::new(spacing, Instant::now())
    }

    fn schedule() -> Schedule {
        spaced(Duration::ZERO)
    }

    impl Schedule {
        fn take_one(&mut self, now: Instant) -> Option<PartitionId> {
            self.take(1, now).pop()
        }
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
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take_one(now)).collect();
        assert_eq!(taken, [B, A, C]);
    }

    #[test]
    fn a_slow_step_is_followed_by_a_longer_rest() {
        let ms = Duration::from_millis;
        let (mut schedule, now) = (spaced(ms(10)), Instant::now());
        let mut ready_after = |took| {
            schedule.took(took);
            schedule.mark(A, now + ms(1000));
            let taken = schedule.take_one(now + ms(2000));
            assert_eq!(taken, Some(A));
            schedule.done(A, Outcome::Finished, now + ms(2000));
            let waits = schedule.after_a_beat(A, now + ms(2000)) > now + ms(2000);
            (schedule.beat, waits)
        };
        assert_eq!(ready_after(ms(1)), (ms(10), true));
        assert_eq!(ready_after(ms(20)), (ms(80), true));
        assert_eq!(ready_after(ms(9000)), (LONGEST_STRETCH, true));
        assert_eq!(ready_after(ms(0)), (ms(10), true));
    }

    #[test]
    fn work_announced_while_a_partition_is_sequenced_is_not_lost() {
        let (mut schedule, now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.mark(A, now);
        assert_eq!(schedule.take_one(now), None, "one worker at a time");
        schedule.done(A, Outcome::Finished, now);
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.done(A, Outcome::Finished, now);
        assert_eq!(schedule.take_one(now), None);
    }

    #[test]
    fn a_partition_with_more_lets_the_others_go_first() {
        let (mut schedule, now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        schedule.mark(B, now);
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.done(A, Outcome::More, now);
        assert_eq!(schedule.take_one(now), Some(B));
        assert_eq!(schedule.take_one(now), Some(A));
    }

    #[test]
    fn one_that_fails_rests_longer_each_time_and_holds_up_nobody() {
        let (mut schedule, mut now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        for millis in [
            100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000,
        ] {
            assert_eq!(schedule.take_one(now), Some(A));
            schedule.done(A, Outcome::Failed, now);
            schedule.mark(B, now);
            assert_eq!(schedule.take_one(now), Some(B), "B does not wait for A");
            schedule.done(B, Outcome::Finished, now);
            let ready = now + Duration::from_millis(millis);
            assert_eq!(schedule.next_ready(), Some(ready));
            assert_eq!(schedule.take_one(ready - Duration::from_millis(1)), None);
            now = ready;
        }
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.done(A, Outcome::Finished, now);
        schedule.mark(A, now);
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.done(A, Outcome::Failed, now);
        assert_eq!(
            schedule.next_ready(),
            Some(now + FIRST),
            "a success resets the rest"
        );
    }

    #[test]
    fn one_that_is_busy_after_it_failed_has_failed_still() {
        let (mut schedule, now) = (schedule(), Instant::now());
        schedule.mark(A, now);
        for outcome in [Outcome::Failed, Outcome::Busy(Duration::ZERO)] {
            assert_eq!(schedule.take_one(now + LONGEST), Some(A));
            schedule.done(A, outcome, now);
            assert_eq!(schedule.failures(A), 1);
        }
        assert_eq!(schedule.take_one(now), Some(A));
        schedule.done(A, Outcome::More, now);
        assert_eq!(schedule.failures(A), 0);
    }

    #[test]
    fn when_the_database_answers_again_nobody_rests() {
        let (mut schedule, now) = (schedule(), Instant::now());
        for _ in 0..50 {
            schedule.mark(A, now);
            schedule.end_rests(now);
            assert_eq!(schedule.take_one(now), Some(A));
            schedule.done(A, Outcome::Failed, now);
        }
        schedule.end_rests(now);
        assert_eq!(schedule.take_one(now), Some(A));
    }

    #[test]
    fn several_are_taken_at_once_but_one_that_failed_comes_alone() {
        let (mut schedule, now) = (schedule(), Instant::now());
        for partition in [A, B, C] {
            schedule.mark(partition, now);
        }
        assert_eq!(schedule.take(2, now), [A, B]);
        schedule.done(A, Outcome::Failed, now);
        schedule.done(B, Outcome::Finished, now);
        schedule.mark(B, now);
        let later = now + FIRST;
        assert_eq!(schedule.take(9, later), [C, B]);
        assert_eq!(schedule.take(9, later), [A]);
        schedule.done(A, Outcome::Failed, later);
        schedule.end_rests(later);
        assert_eq!(schedule.take(9, later), [A], "forgiven");
    }

    #[test]
    fn the_beat_follows_the_tuning() {
        let beat = |tuning: WorkerTuning| Spacing::from(&tuning).beat.as_millis();
        assert_eq!(beat(WorkerTuning::sequencer_low_latency()), 1);
        assert_eq!(beat(WorkerTuning::sequencer_default()), 20);
        assert_eq!(beat(WorkerTuning::sequencer_high_throughput()), 40);
    }

    #[test]
    fn what_is_announced_between_two_beats_is_done_together() {
        let mut schedule = spaced(BEAT);
        let began = schedule.began;
        let at = |millis| began + Duration::from_millis(millis);
        assert!(schedule.mark(A, at(1)), "at once after a pause");
        assert_eq!(schedule.take(9, at(1)), [A]);
        schedule.mark(A, at(2));
        schedule.done(A, Outcome::Finished, at(2));
        assert_eq!(schedule.next_ready(), Some(at(10)));
        assert!(schedule.mark(B, at(3)), "sooner than the one that waits");
        assert_eq!(schedule.take(9, at(3)), [B]);
        schedule.done(B, Outcome::Finished, at(4));
        assert!(!schedule.mark(B, at(5)), "somebody waits for that beat");
        assert!(schedule.mark(C, at(11)), "nobody came for it");
        assert_eq!(schedule.take(9, at(9)), []);
        assert_eq!(schedule.take(9, at(11)), [A, B, C]);
    }

    #[test]
    fn beats_go_on_for_years() {
        let mut schedule = spaced(Duration::from_micros(20));
        let later = schedule.began + Duration::from_secs(400 * 24 * 3600);
        schedule.mark(A, later);
        assert_eq!(schedule.take(9, later), [A]);
        schedule.done(A, Outcome::Finished, later);
        schedule.mark(A, later);
        assert!(schedule.next_ready().unwrap() > later);
    }
}
