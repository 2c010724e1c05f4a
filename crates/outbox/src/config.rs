//! Configuration that is not about pace: what the sequencer takes on at once, and how long a lease
//! lasts. For pace and failure see `tuning`.

use std::time::Duration;

use crate::error::OutboxError;

/// Messages sequenced in one step.
pub const DEFAULT_SEQUENCER_BATCH_SIZE: u32 = 1000;
/// How often the sequencer looks without being told to.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_mins(10);
/// Partitions taken on in one round.
pub const DEFAULT_PARTITION_BATCH_LIMIT: u32 = 128;
/// Steps on one partition before the next has its turn.
pub const DEFAULT_MAX_INNER_ITERATIONS: u32 = 8;

/// The configuration of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxConfig {
    /// What the sequencer takes on at once.
    pub sequencer: SequencerConfig,
}

/// What the sequencer takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencerConfig {
    /// Messages sequenced in one step.
    pub batch_size: u32,
    /// How often to look without being told to.
    pub poll_interval: Duration,
    /// Partitions taken on in one round.
    pub partition_batch_limit: u32,
    /// Steps on one partition before the next has its turn.
    pub max_inner_iterations: u32,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        Self {
            batch_size: DEFAULT_SEQUENCER_BATCH_SIZE,
            poll_interval: DEFAULT_POLL_INTERVAL,
            partition_batch_limit: DEFAULT_PARTITION_BATCH_LIMIT,
            max_inner_iterations: DEFAULT_MAX_INNER_ITERATIONS,
        }
    }
}

impl SequencerConfig {
    /// Refuses values with which nothing would ever be sequenced.
    pub fn validate(&self) -> Result<(), OutboxError> {
        let at_least_one = [
            ("sequencer.batch_size", self.batch_size),
            (
                "sequencer.partition_batch_limit",
                self.partition_batch_limit,
            ),
            ("sequencer.max_inner_iterations", self.max_inner_iterations),
        ];
        for (field, value) in at_least_one {
            if value == 0 {
                return Err(OutboxError::config(field, value, "at least 1"));
            }
        }
        if self.poll_interval.is_zero() {
            let (field, value) = ("sequencer.poll_interval", self.poll_interval);
            return Err(OutboxError::config(field, value, "longer than 0"));
        }
        Ok(())
    }
}

/// The longest time that can be set: beyond, a server's timeouts overflow.
pub(crate) const LONGEST: Duration = Duration::from_hours(24 * 24);

/// How long a leased handler may hold its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConfig {
    /// How long a lease lasts unless it is renewed. Default 30 s.
    pub duration: Duration,
    /// What is kept back of it for settling. Default 2 s.
    pub headroom: Duration,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(30),
            headroom: Duration::from_secs(2),
        }
    }
}

impl LeaseConfig {
    /// What is left for the handler, counted from before the claim was sent.
    pub const fn handler_budget(&self) -> Duration {
        self.duration.saturating_sub(self.headroom)
    }

    /// Refuses a lease that leaves the handler no time, or that is not a whole number of
    /// milliseconds, the resolution leases are stored with.
    pub fn validate(&self) -> Result<(), OutboxError> {
        if self.duration > LONGEST {
            let (field, value) = ("lease.duration", self.duration);
            return Err(OutboxError::config(field, value, "at most 24 days"));
        }
        if self.headroom >= self.duration {
            let allowed = format!("shorter than lease.duration, which is {:?}", self.duration);
            return Err(OutboxError::config(
                "lease.headroom",
                self.headroom,
                allowed,
            ));
        }
        if !self.duration.subsec_nanos().is_multiple_of(1_000_000) {
            let (field, value) = ("lease.duration", self.duration);
            return Err(OutboxError::config(
                field,
                value,
                "a whole number of milliseconds",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_documented_ones_and_valid() {
        let SequencerConfig {
            batch_size,
            poll_interval,
            partition_batch_limit,
            max_inner_iterations,
        } = OutboxConfig::default().sequencer;
        assert_eq!(
            (
                batch_size,
                poll_interval,
                partition_batch_limit,
                max_inner_iterations
            ),
            (1000, Duration::from_mins(10), 128, 8)
        );
        SequencerConfig::default().validate().unwrap();

        let lease = LeaseConfig::default();
        assert_eq!(
            (lease.duration.as_secs(), lease.headroom.as_secs()),
            (30, 2)
        );
        assert_eq!(lease.handler_budget(), Duration::from_secs(28));
        lease.validate().unwrap();
    }

    #[test]
    fn a_refused_sequencer_setting_is_named() {
        let good = SequencerConfig::default();
        for (bad, message) in [
            (
                SequencerConfig {
                    batch_size: 0,
                    ..good
                },
                "sequencer.batch_size is 0, but must be at least 1",
            ),
            (
                SequencerConfig {
                    partition_batch_limit: 0,
                    ..good
                },
                "sequencer.partition_batch_limit is 0, but must be at least 1",
            ),
            (
                SequencerConfig {
                    max_inner_iterations: 0,
                    ..good
                },
                "sequencer.max_inner_iterations is 0, but must be at least 1",
            ),
            (
                SequencerConfig {
                    poll_interval: Duration::ZERO,
                    ..good
                },
                "sequencer.poll_interval is 0ns, but must be longer than 0",
            ),
        ] {
            assert_eq!(bad.validate().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn leases_have_millisecond_resolution_and_leave_the_handler_time() {
        let lease = |duration, headroom| LeaseConfig {
            duration: Duration::from_micros(duration),
            headroom: Duration::from_micros(headroom),
        };
        let half_a_second = lease(500_000, 100_000);
        half_a_second.validate().unwrap();
        assert_eq!(half_a_second.handler_budget(), Duration::from_millis(400));
        for (bad, message) in [
            (
                lease(5_000_000, 5_000_000),
                "lease.headroom is 5s, but must be shorter than lease.duration, which is 5s",
            ),
            (
                lease(5_000_000, 9_000_000),
                "lease.headroom is 9s, but must be shorter than lease.duration, which is 5s",
            ),
            (
                lease(u64::MAX, 0),
                "lease.duration is 18446744073709.551615s, but must be at most 24 days",
            ),
            (
                lease(1_500, 0),
                "lease.duration is 1.5ms, but must be a whole number of milliseconds",
            ),
        ] {
            assert_eq!(bad.validate().unwrap_err().to_string(), message);
        }
        assert_eq!(lease(5, 9).handler_budget(), Duration::ZERO);
    }
}
