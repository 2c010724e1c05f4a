//! The gate in front of a worker: how many may execute at once, and how long one that fails must
//! rest. Never knows what is executed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use crate::runtime::tokio;
use crate::runtime::tokio::sync::{OwnedSemaphorePermit, Semaphore};
use crate::runtime::tokio_util::sync::CancellationToken;

/// How many executions may run at once, shared with whoever holds the same semaphores.
#[derive(Debug, Clone, Default)]
pub enum ConcurrencyLimit {
    /// No limit.
    #[default]
    Unlimited,
    /// As many as the semaphore has permits.
    Fixed(Arc<Semaphore>),
    /// A share of a common pool first, and a reserve of one's own when the pool is exhausted.
    Tiered {
        /// The reserve that only these workers draw from.
        guaranteed: Arc<Semaphore>,
        /// The common pool.
        shared: Arc<Semaphore>,
    },
}

/// How long a failing worker rests: `initial`, then `multiplier` times longer after each further
/// failure, at most `max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffConfig {
    /// The rest after the first failure. Default 100 ms.
    pub initial: Duration,
    /// The longest rest, jitter included. Default 30 s.
    pub max: Duration,
    /// The growth per failure. Default 2.0; anything below 1 or not a number counts as 1.
    pub multiplier: f64,
    /// The share by which a rest is randomly longer or shorter, 0 to 1. Default 0.3.
    pub jitter: f64,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(30),
            multiplier: 2.0,
            jitter: 0.3,
        }
    }
}

impl BackoffConfig {
    /// `duration` times `factor`, at most `max`, whatever the numbers.
    fn scaled(&self, duration: Duration, factor: f64) -> Duration {
        Duration::try_from_secs_f64(duration.as_secs_f64() * factor)
            .unwrap_or(self.max)
            .min(self.max)
    }

    fn following(&self, previous: Option<Duration>) -> Duration {
        match previous {
            None => self.initial.min(self.max),
            // `f64::max` also replaces a NaN.
            Some(previous) => self.scaled(previous, self.multiplier.max(1.0)),
        }
    }

    /// Makes `duration` longer or shorter by a share that `random` picks.
    fn jittered(&self, duration: Duration, random: u64) -> Duration {
        if self.jitter.is_nan() || self.jitter <= 0.0 {
            return duration;
        }
        let between_minus_one_and_one = random as f64 / (u64::MAX / 2) as f64 - 1.0;
        self.scaled(
            duration,
            1.0 + self.jitter.min(1.0) * between_minus_one_and_one,
        )
    }
}

/// What a [`Bulkhead`] is made of.
#[derive(Debug, Clone, Default)]
pub struct BulkheadConfig {
    /// How many executions may run at once.
    pub semaphore: ConcurrencyLimit,
    /// How long a failing worker rests.
    pub backoff: BackoffConfig,
}

/// A worker's concurrency gate and error backoff.
#[derive(Debug, Default)]
pub struct Bulkhead {
    name: String,
    config: BulkheadConfig,
    consecutive_failures: u32,
    /// The last rest before jitter; `None` while healthy.
    rest: Option<Duration>,
    /// The same with jitter: what is waited.
    interval: Duration,
    /// Seeded per bulkhead, so that workers of the same name in many processes do not march in step.
    randomness: RandomState,
}

impl Bulkhead {
    /// A healthy bulkhead. The name appears in logs.
    pub fn new(name: impl Into<String>, config: BulkheadConfig) -> Self {
        Self {
            name: name.into(),
            config,
            ..Self::default()
        }
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes a failure: the next rest is longer.
    pub fn escalate(&mut self) {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        let rest = self.config.backoff.following(self.rest);
        self.rest = Some(rest);
        let random = self.randomness.hash_one(self.consecutive_failures);
        self.interval = self.config.backoff.jittered(rest, random);
    }

    /// Notes a success: no rest.
    pub fn reset(&mut self) {
        self.consecutive_failures = 0;
        self.rest = None;
        self.interval = Duration::ZERO;
    }

    /// The rest that is due: zero while healthy.
    pub fn min_interval(&self) -> Duration {
        self.interval
    }

    /// How many failures there were since the last success.
    pub fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures
    }

    /// Waits for the right to execute once; hold the permit for that long.
    ///
    /// `None` when `cancel` fires, or when no permit can ever come because the semaphores were
    /// closed.
    pub async fn acquire(&self, cancel: &CancellationToken) -> Option<Permit> {
        cancel.run_until_cancelled(self.permit()).await.flatten()
    }

    async fn permit(&self) -> Option<Permit> {
        match &self.config.semaphore {
            ConcurrencyLimit::Unlimited => Some(Permit(None)),
            ConcurrencyLimit::Fixed(semaphore) => {
                let permit = Arc::clone(semaphore).acquire_owned().await.ok()?;
                Some(Permit(Some(permit)))
            }
            ConcurrencyLimit::Tiered { guaranteed, shared } => tokio::select! {
                biased;
                Ok(permit) = Arc::clone(shared).acquire_owned() => Some(Permit(Some(permit))),
                Ok(permit) = Arc::clone(guaranteed).acquire_owned() => Some(Permit(Some(permit))),
                else => None,
            },
        }
    }
}

/// The right to execute once, given back when dropped.
#[derive(Debug)]
pub struct Permit(
    #[expect(dead_code, reason = "held for what its drop does")] Option<OwnedSemaphorePermit>,
);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bulkhead(backoff: BackoffConfig) -> Bulkhead {
        Bulkhead::new(
            "test",
            BulkheadConfig {
                backoff,
                ..Default::default()
            },
        )
    }

    const EXACT: BackoffConfig = BackoffConfig {
        initial: Duration::from_secs(1),
        max: Duration::from_secs(60),
        multiplier: 2.0,
        jitter: 0.0,
    };

    #[test]
    fn rests_double_up_to_the_maximum_and_end_with_a_success() {
        let mut bulkhead = bulkhead(EXACT);
        assert_eq!(bulkhead.min_interval(), Duration::ZERO);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            bulkhead.escalate();
            assert_eq!(bulkhead.min_interval(), Duration::from_secs(seconds));
        }
        assert_eq!(bulkhead.consecutive_failures(), 8);
        bulkhead.reset();
        assert_eq!(
            (bulkhead.min_interval(), bulkhead.consecutive_failures()),
            (Duration::ZERO, 0)
        );
        bulkhead.escalate();
        assert_eq!(bulkhead.min_interval(), Duration::from_secs(1));
    }

    #[test]
    fn workers_of_one_name_do_not_rest_in_step() {
        let rest = || {
            let mut bulkhead = bulkhead(BackoffConfig {
                jitter: 0.3,
                ..EXACT
            });
            bulkhead.escalate();
            bulkhead.min_interval()
        };
        let rests: std::collections::HashSet<_> = (0..20).map(|_| rest()).collect();
        assert!(rests.len() > 1, "20 bulkheads rest for the same {rests:?}");
    }

    proptest! {
        #[test]
        fn no_configuration_and_no_number_of_failures_overflows(
            initial in 0u64..u64::MAX, max in 0u64..u64::MAX,
            multiplier in prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), 0.5f64..4.0],
            jitter in prop_oneof![any::<f64>(), Just(f64::NAN), 0.0f64..1.0],
        ) {
            let backoff = BackoffConfig {
                initial: Duration::from_nanos(initial), max: Duration::from_nanos(max), multiplier, jitter,
            };
            let mut bulkhead = bulkhead(backoff);
            for _ in 0..5_000 {
                bulkhead.escalate();
                prop_assert!(bulkhead.min_interval() <= backoff.max);
            }
            prop_assert_eq!(bulkhead.consecutive_failures(), 5_000);
        }

        #[test]
        fn jitter_stays_within_its_share(share in 0.0f64..1.0, failures in 1u32..40) {
            let mut bulkhead = bulkhead(BackoffConfig { jitter: share, ..EXACT });
            for _ in 0..failures {
                bulkhead.escalate();
            }
            let plain = bulkhead.rest.expect("a failing bulkhead rests").as_secs_f64();
            let rest = bulkhead.min_interval().as_secs_f64();
            prop_assert!(rest >= plain * (1.0 - share) - 1e-6, "{rest} against {plain}");
            prop_assert!(rest <= plain * (1.0 + share) + 1e-6, "{rest} against {plain}");
        }
    }

    fn tiered(guaranteed: usize, shared: usize) -> (Bulkhead, Arc<Semaphore>, Arc<Semaphore>) {
        let (guaranteed, shared) = (
            Arc::new(Semaphore::new(guaranteed)),
            Arc::new(Semaphore::new(shared)),
        );
        let semaphore = ConcurrencyLimit::Tiered {
            guaranteed: guaranteed.clone(),
            shared: shared.clone(),
        };
        let bulkhead = Bulkhead::new(
            "tiered",
            BulkheadConfig {
                semaphore,
                ..Default::default()
            },
        );
        (bulkhead, guaranteed, shared)
    }

    #[tokio::test]
    async fn the_shared_pool_goes_first_and_the_reserve_when_it_is_exhausted() {
        let (bulkhead, guaranteed, shared) = tiered(1, 1);
        let cancel = CancellationToken::new();
        let first = bulkhead.acquire(&cancel).await;
        assert_eq!(
            (shared.available_permits(), guaranteed.available_permits()),
            (0, 1)
        );
        let second = bulkhead.acquire(&cancel).await;
        assert_eq!(
            (shared.available_permits(), guaranteed.available_permits()),
            (0, 0)
        );

        let mut third = std::pin::pin!(bulkhead.acquire(&cancel));
        assert!(futures_util::poll!(&mut third).is_pending());
        drop((first, second));
        assert!(third.await.is_some());
        assert_eq!(
            (shared.available_permits(), guaranteed.available_permits()),
            (1, 1)
        );
    }

    #[tokio::test]
    async fn cancellation_ends_the_wait_for_a_permit() {
        let (bulkhead, ..) = tiered(0, 0);
        let cancel = CancellationToken::new();
        let mut waiting = std::pin::pin!(bulkhead.acquire(&cancel));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        cancel.cancel();
        assert!(waiting.await.is_none());
    }

    #[tokio::test]
    async fn a_closed_semaphore_is_passed_over_and_when_all_are_closed_nobody_waits() {
        let (bulkhead, guaranteed, shared) = tiered(1, 1);
        let cancel = CancellationToken::new();
        shared.close();
        assert!(bulkhead.acquire(&cancel).await.is_some());
        guaranteed.close();
        assert!(bulkhead.acquire(&cancel).await.is_none());
    }
}
