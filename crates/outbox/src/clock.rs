//! The process's own clock, for backoffs and rests. Tests move it; otherwise it is tokio's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Tokio's clock, and how far it was moved.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    moved_millis: AtomicU64,
}

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.moved_millis.load(Ordering::Relaxed))
    }

    #[cfg(feature = "testing")]
    pub(crate) fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.moved_millis.fetch_add(millis, Ordering::Relaxed);
    }
}
