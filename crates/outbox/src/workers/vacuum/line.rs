//! Which partitions the vacuum goes to next, and how much it takes on there. Whoever was looked at last
//! comes last, in the next round too: a busy one keeps nobody waiting. One that failed rests, and goes on in
//! small steps that grow again. Pure: no clock, no database.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{PartitionId, Swept};
use crate::handler::HandlerResult;
use crate::partition_mode::{PartitionMode, PartitionModeState};
use crate::tuning::WorkerTuning;

/// The partitions in which something was settled.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// In the order in which they are due.
    waiting: VecDeque<PartitionId>,
    /// Those that failed and have not found back to their full size.
    troubled: HashMap<PartitionId, Trouble>,
}

#[derive(Debug)]
struct Trouble {
    mode: PartitionMode,
    rests_until: Instant,
}

impl Line {
    /// Something was settled there. Twice is once.
    pub(super) fn join(&mut self, partitions: impl IntoIterator<Item = PartitionId>) {
        for partition_id in partitions {
            if !self.waiting.contains(&partition_id) {
                self.waiting.push_back(partition_id);
            }
        }
    }

    /// Those that do not rest.
    pub(super) fn due(&self, now: Instant) -> VecDeque<PartitionId> {
        let is_due = |id: &PartitionId| self.resting(*id).is_none_or(|until| until <= now);
        self.waiting.iter().copied().filter(is_due).collect()
    }

    /// How long it is until the first of those that failed is due: no time if that is over already.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let rests = self.waiting.iter().filter_map(|id| self.resting(*id));
        rests
            .min()
            .map(|until| until.saturating_duration_since(now))
    }

    fn resting(&self, partition_id: PartitionId) -> Option<Instant> {
        let trouble = self.troubled.get(&partition_id)?;
        Some(trouble.rests_until)
    }

    /// How many messages to remove at most, of `configured` where all is well.
    pub(super) fn limit(&self, partition_id: PartitionId, configured: u32) -> u32 {
        let trouble = self.troubled.get(&partition_id);
        trouble.map_or(configured, |trouble| {
            trouble.mode.effective_batch_size(configured)
        })
    }

    /// How often it has failed in a row.
    pub(super) fn failures(&self, partition_id: PartitionId) -> u32 {
        let trouble = self.troubled.get(&partition_id);
        trouble.map_or(0, |trouble| trouble.mode.consecutive_failures)
    }

    /// A step came to its end.
    pub(super) fn swept(&mut self, partition_id: PartitionId, swept: Swept, configured: u32) {
        self.waiting.retain(|waiting| *waiting != partition_id);
        if swept.more || swept.busy {
            self.waiting.push_back(partition_id);
        }
        // Somebody else who is at it may be what is left of a step of ours that took too long.
        if !swept.busy
            && let Some(Trouble { mode, .. }) = self.troubled.get_mut(&partition_id)
        {
            mode.transition(&HandlerResult::Success, configured, None, 1);
            if mode.state == PartitionModeState::Normal {
                self.troubled.remove(&partition_id);
            }
        }
    }

    /// A step failed. What was too much is tried again with less, and without a rest for the others.
    pub(super) fn failed(
        &mut self,
        partition_id: PartitionId,
        tuning: &WorkerTuning,
        now: Instant,
    ) {
        self.waiting.retain(|waiting| *waiting != partition_id);
        self.waiting.push_back(partition_id);
        let new = || Trouble {
            mode: PartitionMode::new(),
            rests_until: now,
        };
        let trouble = self.troubled.entry(partition_id).or_insert_with(new);
        let retry = HandlerResult::Retry {
            reason: String::new(),
        };
        trouble.mode.transition(&retry, tuning.batch_size, None, 1);
        let rest = trouble
            .mode
            .current_backoff(tuning.retry_base, tuning.retry_max);
        trouble.rests_until = now + rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PartitionId = PartitionId(1);
    const B: PartitionId = PartitionId(2);
    const C: PartitionId = PartitionId(3);

    fn swept(more: bool, busy: bool) -> Swept {
        let messages = 1;
        Swept {
            messages,
            more,
            busy,
        }
    }

    #[test]
    fn a_round_that_is_cut_short_goes_on_with_those_that_had_no_turn() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.join([A, B, C]);
        line.join([B, A]);
        assert_eq!(line.due(now), [A, B, C]);
        line.swept(A, swept(true, false), 10);
        assert_eq!(line.due(now), [B, C, A]);
        line.swept(B, swept(false, true), 10);
        line.failed(C, &WorkerTuning::vacuum(), now);
        let later = now + WorkerTuning::vacuum().retry_base;
        assert_eq!(line.due(later), [A, B, C]);
        line.swept(A, swept(false, false), 10);
        assert_eq!(line.due(later), [B, C]);
    }

    #[test]
    fn one_that_failed_rests_and_goes_on_in_steps_that_grow() {
        let (mut line, now) = (Line::default(), Instant::now());
        let tuning = WorkerTuning::vacuum().batch_size(5);
        line.join([A, B]);
        assert_eq!((line.limit(A, 5), line.rest(now)), (5, None));
        for rest in [1, 2, 4] {
            line.failed(A, &tuning, now);
            let rest = Duration::from_secs(rest);
            assert_eq!((line.limit(A, 5), line.rest(now)), (1, Some(rest)));
            assert_eq!(line.due(now), [B]);
            assert_eq!(line.due(now + rest), [B, A]);
            assert_eq!(line.rest(now + rest * 2), Some(Duration::ZERO), "overdue");
        }
        assert_eq!((line.failures(A), line.failures(B)), (3, 0));
        assert_eq!(line.limit(B, 5), 5);
        line.swept(A, swept(false, true), 5);
        assert_eq!((line.limit(A, 5), line.failures(A)), (1, 3), "busy");
        for limit in [2, 4, 5] {
            line.swept(A, swept(true, false), 5);
            assert_eq!((line.limit(A, 5), line.failures(A)), (limit, 0));
        }
        assert!(line.troubled.is_empty());
    }
}
