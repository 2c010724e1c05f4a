//! How much a partition takes on at once, and how long it rests after a failure. Pure: no clock, no
//! database.
//!
//! ```text
//!                 Retry below the threshold            Success, size < configured: size × 2
//!                      ┌────┐                              ┌────┐
//!                      │    ▼                              │    ▼
//!                     Normal ── Retry at the threshold ─▶ Degraded { effective_size }
//!                        ▲      or any Reject                │
//!                        └───── Success, size reaches the ───┘
//!                               configured one
//! ```

use std::time::Duration;

use crate::handler::HandlerResult;

/// The pace of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionMode {
    /// Whether the partition works at its full batch size.
    pub state: PartitionModeState,
    /// Retries since the last success or reject.
    pub consecutive_failures: u32,
}

/// Whether a partition works at its full batch size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PartitionModeState {
    /// It does.
    #[default]
    Normal,
    /// It works at a smaller size, which each success doubles.
    Degraded {
        /// The batch size for now.
        effective_size: u32,
        /// Successes since it degraded.
        consecutive_successes: u32,
    },
}

impl PartitionMode {
    /// A healthy partition.
    pub fn new() -> Self {
        Self::default()
    }

    /// A partition taken over from a holder that did not release: one message at a time, at first.
    pub(crate) fn cautious() -> Self {
        let state = PartitionModeState::Degraded {
            effective_size: 1,
            consecutive_successes: 0,
        };
        Self {
            state,
            consecutive_failures: 0,
        }
    }

    /// How many messages to take on next: at least one, at most `configured`.
    pub fn effective_batch_size(&self, configured: u32) -> u32 {
        let size = match self.state {
            PartitionModeState::Normal => configured,
            PartitionModeState::Degraded { effective_size, .. } => effective_size.min(configured),
        };
        size.max(1)
    }

    /// How long to rest after a `Retry`: `base`, doubled for each failure after the first, at most
    /// `max`.
    pub fn current_backoff(&self, base: Duration, max: Duration) -> Duration {
        let doublings = self.consecutive_failures.saturating_sub(1);
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        base.saturating_mul(factor).min(max)
    }

    /// Takes in how a batch ended: of `configured` messages at most, `processed` before the end
    /// where that is known, degrading at the `threshold`-th failure in a row.
    pub fn transition(
        &mut self,
        result: &HandlerResult,
        configured: u32,
        processed: Option<u32>,
        threshold: u32,
    ) {
        match result {
            HandlerResult::Success => {
                self.consecutive_failures = 0;
                self.recover(configured);
            }
            HandlerResult::Retry { .. } => {
                self.consecutive_failures = self.consecutive_failures.saturating_add(1);
                if self.consecutive_failures >= threshold {
                    self.degrade(configured, processed);
                }
            }
            HandlerResult::Reject { .. } => {
                self.consecutive_failures = 0;
                self.degrade(configured, processed);
            }
        }
    }

    /// The next batch ends right before the message at fault, or is just one message where nobody
    /// knows which that is.
    fn degrade(&mut self, configured: u32, processed: Option<u32>) {
        self.state = PartitionModeState::Degraded {
            effective_size: processed.unwrap_or(1).min(configured).max(1),
            consecutive_successes: 0,
        };
    }

    fn recover(&mut self, configured: u32) {
        if let PartitionModeState::Degraded {
            effective_size,
            consecutive_successes,
        } = &mut self.state
        {
            *effective_size = effective_size.saturating_mul(2);
            *consecutive_successes = consecutive_successes.saturating_add(1);
            if *effective_size >= configured {
                self.state = PartitionModeState::Normal;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn retry() -> HandlerResult {
        HandlerResult::Retry {
            reason: "not now".into(),
        }
    }

    fn reject() -> HandlerResult {
        HandlerResult::Reject {
            reason: "never".into(),
        }
    }

    fn degraded(effective_size: u32, consecutive_successes: u32) -> PartitionModeState {
        PartitionModeState::Degraded {
            effective_size,
            consecutive_successes,
        }
    }

    #[test]
    fn a_partition_degrades_at_the_threshold_and_not_before() {
        let mut mode = PartitionMode::new();
        mode.transition(&retry(), 10, None, 3);
        mode.transition(&retry(), 10, None, 3);
        assert_eq!(
            mode,
            PartitionMode {
                state: PartitionModeState::Normal,
                consecutive_failures: 2
            }
        );
        mode.transition(&retry(), 10, None, 3);
        assert_eq!(
            mode,
            PartitionMode {
                state: degraded(1, 0),
                consecutive_failures: 3
            }
        );
    }

    #[test]
    fn the_known_number_of_processed_messages_is_the_next_size() {
        for (processed, size) in [
            (None, 1),
            (Some(0), 1),
            (Some(1), 1),
            (Some(7), 7),
            (Some(99), 10),
        ] {
            for result in [retry(), reject()] {
                let mut mode = PartitionMode::new();
                mode.transition(&result, 10, processed, 1);
                assert_eq!(
                    mode.effective_batch_size(10),
                    size,
                    "{result:?} after {processed:?}"
                );
            }
        }
    }

    #[test]
    fn a_reject_degrades_at_once_and_forgets_the_failures() {
        let mut mode = PartitionMode::new();
        mode.transition(&retry(), 10, None, 5);
        mode.transition(&reject(), 10, None, 5);
        assert_eq!(
            mode,
            PartitionMode {
                state: degraded(1, 0),
                consecutive_failures: 0
            }
        );
    }

    #[test]
    fn successes_double_the_size_until_it_is_the_configured_one() {
        let mut mode = PartitionMode {
            state: degraded(1, 0),
            consecutive_failures: 4,
        };
        let mut sizes = Vec::new();
        for _ in 0..5 {
            mode.transition(&HandlerResult::Success, 10, None, 2);
            sizes.push(mode.effective_batch_size(10));
        }
        assert_eq!(sizes, [2, 4, 8, 10, 10]);
        assert_eq!(mode, PartitionMode::new());
    }

    #[test]
    fn the_backoff_doubles_from_the_base_up_to_the_maximum() {
        let seconds = Duration::from_secs;
        let backoff = |consecutive_failures| {
            PartitionMode {
                consecutive_failures,
                ..PartitionMode::new()
            }
            .current_backoff(seconds(1), seconds(60))
        };
        let backoffs: Vec<_> = (0..9).map(backoff).collect();
        assert_eq!(backoffs, [1, 1, 2, 4, 8, 16, 32, 60, 60].map(seconds));
        assert_eq!(backoff(u32::MAX), seconds(60));
    }

    fn any_result() -> impl Strategy<Value = HandlerResult> {
        prop_oneof![Just(HandlerResult::Success), Just(retry()), Just(reject())]
    }

    type Steps = Vec<(HandlerResult, Option<u32>)>;

    fn any_steps() -> impl Strategy<Value = Steps> {
        prop::collection::vec((any_result(), any::<Option<u32>>()), 0..200)
    }

    fn after(steps: &Steps, configured: u32, threshold: u32) -> PartitionMode {
        let mut mode = PartitionMode::new();
        for (result, processed) in steps {
            mode.transition(result, configured, *processed, threshold);
        }
        mode
    }

    proptest! {
        #[test]
        fn the_size_is_always_between_one_and_the_configured(
            steps in any_steps(), configured in 1_u32.., threshold in any::<u32>(),
        ) {
            let mut mode = PartitionMode::new();
            for (result, processed) in steps {
                mode.transition(&result, configured, processed, threshold);
                let size = mode.effective_batch_size(configured);
                prop_assert!((1..=configured).contains(&size), "{size} of {configured}: {mode:?}");
            }
        }

        #[test]
        fn no_history_is_further_from_normal_than_the_doublings_it_takes(
            steps in any_steps(), configured in 1_u32.., threshold in 1_u32..10,
        ) {
            let mut mode = after(&steps, configured, threshold);
            let mut successes = 0;
            while mode.state != PartitionModeState::Normal {
                mode.transition(&HandlerResult::Success, configured, None, threshold);
                successes += 1;
            }
            let doublings = configured.checked_next_power_of_two().map_or(32, u32::trailing_zeros);
            prop_assert!(successes <= doublings.max(1), "{successes} for {configured}");
        }

        #[test]
        fn a_success_ends_the_failures_and_never_shrinks_the_size(
            steps in any_steps(), configured in 1_u32..5000, threshold in 1_u32..10,
        ) {
            let mut mode = after(&steps, configured, threshold);
            let before = mode.effective_batch_size(configured);
            mode.transition(&HandlerResult::Success, configured, None, threshold);
            prop_assert_eq!(mode.consecutive_failures, 0);
            prop_assert!(mode.effective_batch_size(configured) >= before);
        }

        #[test]
        fn the_backoff_never_overflows_and_never_shrinks_while_failures_go_on(
            failures in any::<u32>(), base in any::<Duration>(), max in any::<Duration>(),
        ) {
            let backoff = |consecutive_failures| {
                PartitionMode { consecutive_failures, ..PartitionMode::new() }
                    .current_backoff(base, max)
            };
            prop_assert!(backoff(failures) <= max);
            prop_assert!(backoff(failures.saturating_add(1)) >= backoff(failures));
        }
    }
}
