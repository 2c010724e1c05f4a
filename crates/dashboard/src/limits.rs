//! How much at once, and how often: nobody can keep the dashboard, or the database behind it, from others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock;

/// Pages that are made at the same time.
const PAGES: usize = 8;
/// How long a page waits for others.
const TURN: Duration = Duration::from_secs(5);
/// Browsers that are told of news.
const STREAMS: usize = 64;
/// The largest form, and how long it may take to arrive.
pub(crate) const FORM: usize = 256 * 1024;
pub(crate) const ARRIVAL: Duration = Duration::from_secs(10);
/// What one user may do within a minute.
const ACTIONS: u32 = 120;

const MINUTE: Duration = Duration::from_secs(60);
/// How many are told apart; when there are more, counting begins anew.
const TOLD_APART: usize = 10_000;

/// Something that may be done so often within a minute, by each of many.
#[derive(Debug)]
pub(crate) struct Often<K> {
    most: u32,
    counts: Mutex<HashMap<K, (Instant, u32)>>,
}

impl<K: Eq + Hash> Often<K> {
    pub(crate) fn new(most: u32) -> Self {
        let counts = Mutex::default();
        Self { most, counts }
    }

    /// Counts one more. Whether that is still within the limit.
    pub(crate) fn count(&self, who: K) -> bool {
        let mut counts = lock(&self.counts);
        if counts.len() >= TOLD_APART {
            counts.clear();
        }
        let (since, count) = counts.entry(who).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= MINUTE {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        *count <= self.most
    }

    /// Whether the limit is reached.
    pub(crate) fn is_over(&self, who: &K) -> bool {
        let counts = lock(&self.counts);
        let count = counts.get(who);
        count.is_some_and(|(since, count)| since.elapsed() < MINUTE && *count >= self.most)
    }
}

/// What is let through.
pub(crate) struct Limits {
    pages: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    actions: Often<String>,
}

impl Limits {
    pub(crate) fn new() -> Self {
        Self {
            pages: Arc::new(Semaphore::new(PAGES)),
            streams: Arc::new(Semaphore::new(STREAMS)),
            actions: Often::new(ACTIONS),
        }
    }

    /// Waits for others to be done with their pages, a while.
    pub(crate) async fn page(&self) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.pages).acquire_owned();
        tokio::time::timeout(TURN, turn).await.ok()?.ok()
    }

    pub(crate) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.streams).try_acquire_owned().ok()
    }

    /// Whether this user may do one more thing in this minute.
    pub(crate) fn action(&self, user: &str) -> bool {
        self.actions.count(user.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_often_and_not_more_and_each_for_themselves() {
        let limits = Limits::new();
        assert!((0..ACTIONS).all(|_| limits.action("ada")));
        assert!(!limits.action("ada"));
        assert!(limits.action("bob"));
        let often = Often::new(2);
        assert!(!often.is_over(&1));
        assert!(often.count(1) && !often.is_over(&1));
        assert!(often.count(1) && often.is_over(&1) && !often.is_over(&2));
        assert!(!often.count(1));
    }
}
