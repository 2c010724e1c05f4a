//! The process's own clock, for backoffs and rests: tokio's, unless a test has stopped it. Then it only
//! moves when it is told to, so that nothing becomes due because a test was slow.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Tokio's clock, where it was stopped, and how far it was moved.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    stopped: OnceLock<Instant>,
    moved_millis: AtomicU64,
}

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        let now = self.stopped.get().copied().unwrap_or_else(Instant::now);
        now + Duration::from_millis(self.moved_millis.load(Ordering::Relaxed))
    }

    #[cfg(feature = "testing")]
    pub(crate) fn stop(&self) {
        let _ = self.stopped.set(Instant::now());
    }

    #[cfg(feature = "testing")]
    pub(crate) fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.moved_millis.fetch_add(millis, Ordering::Relaxed);
    }
}
