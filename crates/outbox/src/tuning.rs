//! Pace and failure of each worker, and the profiles that set them all at once. Every knob here is
//! read by a worker; `docs/tuning.md` says which to turn when.

use std::time::Duration;

use taskward::PacingConfig;

use crate::config::LONGEST;
use crate::error::OutboxError;

/// How one kind of worker paces itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTuning {
    /// Messages per step, at least 1.
    pub batch_size: u32,
    /// The shortest pause between two steps while there is more to do.
    pub min_interval: Duration,
    /// The first pause after a wait, at least `min_interval`.
    pub active_interval: Duration,
    /// How often to look when nothing was announced.
    pub idle_interval: Duration,
    /// By how much each pause is shorter than the one before.
    pub ramp_step: Duration,
    /// The backoff after a first failure, longer than 0.
    pub retry_base: Duration,
    /// The longest backoff, at least `retry_base`.
    pub retry_max: Duration,
    /// Failures in a row after which the batch size is reduced, at least 1.
    pub degradation_threshold: u32,
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

impl WorkerTuning {
    /// Short for [`processor_default`](Self::processor_default).
    pub const fn processor() -> Self {
        Self::processor_default()
    }

    /// Short for [`sequencer_default`](Self::sequencer_default).
    pub const fn sequencer() -> Self {
        Self::sequencer_default()
    }

    /// A processor for general use.
    pub const fn processor_default() -> Self {
        Self {
            batch_size: 10,
            min_interval: millis(100),
            active_interval: millis(500),
            idle_interval: minutes(10),
            ramp_step: millis(50),
            retry_base: seconds(1),
            retry_max: minutes(1),
            degradation_threshold: 2,
        }
    }

    /// A processor that answers within milliseconds.
    pub const fn processor_low_latency() -> Self {
        Self {
            min_interval: millis(1),
            active_interval: millis(2),
            idle_interval: minutes(1),
            ramp_step: millis(1),
            retry_base: millis(100),
            retry_max: seconds(10),
            degradation_threshold: 3,
            ..Self::processor_default()
        }
    }

    /// A processor that moves as much as it can.
    pub const fn processor_high_throughput() -> Self {
        Self {
            batch_size: 100,
            min_interval: millis(1),
            active_interval: millis(20),
            ramp_step: millis(2),
            ..Self::processor_default()
        }
    }

    /// A processor that leaves the database to others.
    pub const fn processor_relaxed() -> Self {
        Self {
            retry_base: seconds(5),
            retry_max: minutes(5),
            degradation_threshold: 1,
            ..Self::processor_default()
        }
    }

    /// A sequencer for general use.
    pub const fn sequencer_default() -> Self {
        Self {
            batch_size: 1000,
            min_interval: millis(100),
            active_interval: millis(500),
            idle_interval: minutes(10),
            ramp_step: millis(50),
            retry_base: millis(100),
            retry_max: seconds(30),
            degradation_threshold: 1,
        }
    }

    /// A sequencer that answers within milliseconds.
    pub const fn sequencer_low_latency() -> Self {
        Self {
            batch_size: 500,
            min_interval: Duration::ZERO,
            active_interval: millis(1),
            idle_interval: minutes(1),
            ramp_step: Duration::ZERO,
            ..Self::sequencer_default()
        }
    }

    /// A sequencer that moves as much as it can.
    pub const fn sequencer_high_throughput() -> Self {
        Self {
            batch_size: 2000,
            min_interval: millis(10),
            active_interval: millis(100),
            ramp_step: millis(10),
            ..Self::sequencer_default()
        }
    }

    /// A sequencer that leaves the database to others.
    pub const fn sequencer_relaxed() -> Self {
        Self {
            ramp_step: millis(100),
            ..Self::sequencer_default()
        }
    }

    /// The vacuum.
    pub const fn vacuum() -> Self {
        Self {
            batch_size: 10_000,
            min_interval: seconds(1),
            active_interval: seconds(1),
            idle_interval: minutes(60),
            ramp_step: Duration::ZERO,
            retry_base: seconds(1),
            retry_max: minutes(1),
            degradation_threshold: 1,
        }
    }

    /// The reconciler.
    pub const fn reconciler() -> Self {
        Self {
            batch_size: 1,
            idle_interval: minutes(1),
            ..Self::vacuum()
        }
    }
}

/// One builder method per field.
macro_rules! builder_methods {
    ($($field:ident: $kind:ty),* $(,)?) => {
        impl WorkerTuning {$(
            #[doc = concat!("The same with another [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
            #[must_use]
            pub const fn $field(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}

builder_methods! {
    batch_size: u32,
    min_interval: Duration,
    active_interval: Duration,
    idle_interval: Duration,
    ramp_step: Duration,
    retry_base: Duration,
    retry_max: Duration,
    degradation_threshold: u32,
}

impl WorkerTuning {
    /// Refuses values that contradict each other or would stop the worker.
    pub fn validate(&self) -> Result<(), OutboxError> {
        let at_least_one = [
            ("batch_size", self.batch_size),
            ("degradation_threshold", self.degradation_threshold),
        ];
        for (field, value) in at_least_one {
            if value == 0 {
                return Err(OutboxError::config(field, value, "at least 1"));
            }
        }
        if self.min_interval > self.active_interval {
            let allowed = format!(
                "at most active_interval, which is {:?}",
                self.active_interval
            );
            return Err(OutboxError::config(
                "min_interval",
                self.min_interval,
                allowed,
            ));
        }
        if self.retry_base.is_zero() || self.retry_base > self.retry_max {
            let allowed = format!(
                "longer than 0 and at most retry_max, which is {:?}",
                self.retry_max
            );
            return Err(OutboxError::config("retry_base", self.retry_base, allowed));
        }
        if self.retry_max > LONGEST {
            let (field, value) = ("retry_max", self.retry_max);
            return Err(OutboxError::config(field, value, "at most 24 days"));
        }
        Ok(())
    }
}

impl From<&WorkerTuning> for PacingConfig {
    fn from(tuning: &WorkerTuning) -> Self {
        Self {
            min_interval: tuning.min_interval,
            active_interval: tuning.active_interval,
            ramp_step: tuning.ramp_step,
        }
    }
}

impl From<WorkerTuning> for PacingConfig {
    fn from(tuning: WorkerTuning) -> Self {
        Self::from(&tuning)
    }
}

/// The tuning of every kind of worker at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxProfile {
    /// Turns committed messages into sequenced ones.
    pub sequencer: WorkerTuning,
    /// Hands sequenced messages to handlers.
    pub processor: WorkerTuning,
    /// Removes settled messages.
    pub vacuum: WorkerTuning,
    /// Finds work that no signal announced.
    pub reconciler: WorkerTuning,
}

impl OutboxProfile {
    /// For general use.
    pub const fn default_profile() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_default(),
            processor: WorkerTuning::processor_default(),
            vacuum: WorkerTuning::vacuum(),
            reconciler: WorkerTuning::reconciler(),
        }
    }

    /// Answers within milliseconds, and reconciles every 30 seconds.
    pub const fn low_latency() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_low_latency(),
            processor: WorkerTuning::processor_low_latency(),
            reconciler: WorkerTuning::reconciler().idle_interval(seconds(30)),
            ..Self::default_profile()
        }
    }

    /// Moves as much as it can.
    pub const fn high_throughput() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_high_throughput(),
            processor: WorkerTuning::processor_high_throughput(),
            ..Self::default_profile()
        }
    }

    /// Leaves the database to others, and reconciles every 2 minutes.
    pub const fn relaxed() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_relaxed(),
            processor: WorkerTuning::processor_relaxed(),
            reconciler: WorkerTuning::reconciler().idle_interval(minutes(2)),
            ..Self::default_profile()
        }
    }
}

impl Default for OutboxProfile {
    fn default() -> Self {
        Self::default_profile()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// batch, min, active, idle, ramp, retry base, retry max (in ms), degrade after.
    type Row = (u32, u64, u64, u64, u64, u64, u64, u32);

    fn row(tuning: WorkerTuning) -> Row {
        let millis = |duration: Duration| duration.as_millis() as u64;
        (
            tuning.batch_size,
            millis(tuning.min_interval),
            millis(tuning.active_interval),
            millis(tuning.idle_interval),
            millis(tuning.ramp_step),
            millis(tuning.retry_base),
            millis(tuning.retry_max),
            tuning.degradation_threshold,
        )
    }

    #[test]
    fn every_profile_has_the_documented_values_and_is_valid() {
        let table: [(WorkerTuning, Row); 12] = [
            (
                WorkerTuning::processor(),
                (10, 100, 500, 600_000, 50, 1000, 60_000, 2),
            ),
            (
                WorkerTuning::processor_default(),
                (10, 100, 500, 600_000, 50, 1000, 60_000, 2),
            ),
            (
                WorkerTuning::processor_low_latency(),
                (10, 1, 2, 60_000, 1, 100, 10_000, 3),
            ),
            (
                WorkerTuning::processor_high_throughput(),
                (100, 1, 20, 600_000, 2, 1000, 60_000, 2),
            ),
            (
                WorkerTuning::processor_relaxed(),
                (10, 100, 500, 600_000, 50, 5000, 300_000, 1),
            ),
            (
                WorkerTuning::sequencer(),
                (1000, 100, 500, 600_000, 50, 100, 30_000, 1),
            ),
            (
                WorkerTuning::sequencer_default(),
                (1000, 100, 500, 600_000, 50, 100, 30_000, 1),
            ),
            (
                WorkerTuning::sequencer_low_latency(),
                (500, 0, 1, 60_000, 0, 100, 30_000, 1),
            ),
            (
                WorkerTuning::sequencer_high_throughput(),
                (2000, 10, 100, 600_000, 10, 100, 30_000, 1),
            ),
            (
                WorkerTuning::sequencer_relaxed(),
                (1000, 100, 500, 600_000, 100, 100, 30_000, 1),
            ),
            (
                WorkerTuning::vacuum(),
                (10_000, 1000, 1000, 3_600_000, 0, 1000, 60_000, 1),
            ),
            (
                WorkerTuning::reconciler(),
                (1, 1000, 1000, 60_000, 0, 1000, 60_000, 1),
            ),
        ];
        for (tuning, documented) in table {
            assert_eq!(row(tuning), documented);
            tuning.validate().unwrap();
        }
    }

    #[test]
    fn profiles_bundle_the_tunings_of_their_name() {
        assert_eq!(OutboxProfile::default(), OutboxProfile::default_profile());
        for (profile, sequencer, processor, reconciles_every) in [
            (
                OutboxProfile::default_profile(),
                WorkerTuning::sequencer_default(),
                WorkerTuning::processor_default(),
                60,
            ),
            (
                OutboxProfile::low_latency(),
                WorkerTuning::sequencer_low_latency(),
                WorkerTuning::processor_low_latency(),
                30,
            ),
            (
                OutboxProfile::high_throughput(),
                WorkerTuning::sequencer_high_throughput(),
                WorkerTuning::processor_high_throughput(),
                60,
            ),
            (
                OutboxProfile::relaxed(),
                WorkerTuning::sequencer_relaxed(),
                WorkerTuning::processor_relaxed(),
                120,
            ),
        ] {
            assert_eq!(
                (profile.sequencer, profile.processor),
                (sequencer, processor)
            );
            assert_eq!(profile.vacuum, WorkerTuning::vacuum());
            let reconciler = WorkerTuning::reconciler().idle_interval(seconds(reconciles_every));
            assert_eq!(profile.reconciler, reconciler);
        }
    }

    #[test]
    fn each_builder_method_sets_its_field_alone() {
        let changed = WorkerTuning::vacuum()
            .batch_size(1)
            .min_interval(millis(2))
            .active_interval(millis(3))
            .idle_interval(millis(4))
            .ramp_step(millis(5))
            .retry_base(millis(6))
            .retry_max(millis(7))
            .degradation_threshold(8);
        assert_eq!(row(changed), (1, 2, 3, 4, 5, 6, 7, 8));
    }

    #[test]
    fn a_refused_setting_is_named_with_its_value_and_range() {
        let good = WorkerTuning::processor_default();
        for (bad, message) in [
            (
                good.batch_size(0),
                "batch_size is 0, but must be at least 1",
            ),
            (
                good.degradation_threshold(0),
                "degradation_threshold is 0, but must be at least 1",
            ),
            (
                good.min_interval(seconds(1)),
                "min_interval is 1s, but must be at most active_interval, which is 500ms",
            ),
            (
                good.retry_base(Duration::ZERO),
                "retry_base is 0ns, but must be longer than 0 and at most retry_max, which is 60s",
            ),
            (
                good.retry_base(minutes(2)),
                "retry_base is 120s, but must be longer than 0 and at most retry_max, which is 60s",
            ),
        ] {
            assert_eq!(bad.validate().unwrap_err().to_string(), message);
        }
        good.min_interval(good.active_interval)
            .retry_base(good.retry_max)
            .validate()
            .unwrap();
    }

    #[test]
    fn pacing_is_taken_from_the_tuning() {
        let tuning = WorkerTuning::sequencer_high_throughput();
        let pacing = PacingConfig {
            min_interval: millis(10),
            active_interval: millis(100),
            ramp_step: millis(10),
        };
        assert_eq!(PacingConfig::from(tuning), pacing);
        assert_eq!(PacingConfig::from(&tuning), pacing);
    }
}
