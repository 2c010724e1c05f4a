//! How fast a busy worker goes: slowly at first, faster while there is more to do. A pure state
//! machine; the waiting is done by [`task`](crate::task).

use std::time::Duration;

/// The pauses between executions while a worker has more to do.
///
/// The first pause after a wait is `active_interval`; each further one is shorter by `ramp_step`,
/// down to `min_interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacingConfig {
    /// The shortest pause. Default 10 ms.
    pub min_interval: Duration,
    /// The first pause after a wait. Default 100 ms.
    pub active_interval: Duration,
    /// By how much each pause is shorter than the one before. Default 10 ms.
    pub ramp_step: Duration,
}

impl Default for PacingConfig {
    fn default() -> Self {
        Self {
            min_interval: Duration::from_millis(10),
            active_interval: Duration::from_millis(100),
            ramp_step: Duration::from_millis(10),
        }
    }
}

/// Where a worker is on its way from `active_interval` down to `min_interval`. The loop keeps one for
/// [`Directive::Proceed`](crate::Directive::Proceed); an action whose pauses should end when it is
/// notified keeps its own, for [`Directive::Sleep`](crate::Directive::Sleep).
#[derive(Debug)]
pub struct Pace {
    config: PacingConfig,
    next: Duration,
}

impl Pace {
    /// The next pause is the first after a wait.
    pub fn new(config: PacingConfig) -> Self {
        Self {
            config,
            next: config.active_interval,
        }
    }

    /// The worker waits: the next burst starts slowly again.
    pub fn restart(&mut self) {
        self.next = self.config.active_interval;
    }

    /// The pause to make now; the following one is shorter.
    pub fn step(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause
            .saturating_sub(self.config.ramp_step)
            .max(self.config.min_interval);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_shrinks_to_the_minimum_and_starts_anew_after_a_wait() {
        let millis = Duration::from_millis;
        let mut pace = Pace::new(PacingConfig {
            min_interval: millis(10),
            active_interval: millis(100),
            ramp_step: millis(40),
        });
        let burst: Vec<_> = (0..5).map(|_| pace.step()).collect();
        assert_eq!(burst, [100, 60, 20, 10, 10].map(millis));
        pace.restart();
        assert_eq!(pace.step(), millis(100));
    }
}
