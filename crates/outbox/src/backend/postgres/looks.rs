//! How long the looks for new messages take. A partition remembers the snapshot in which something was
//! last found in it, and a look walks over everything that was written since: also over the millions of
//! rows of a transaction that is still open, each time. When that takes long, every partition is sent
//! through the sequencer once, which remembers the snapshot of the day. Plain state.

use std::time::Duration;

use tokio::time::Instant;

/// A look that takes so long is slow.
const SLOW: Duration = Duration::from_millis(100);
/// How often snapshots are renewed at most, for that writes a row per partition,
const PAUSE: Duration = Duration::from_secs(10);
/// and how long sequencers have for it.
const RENEWING: Duration = Duration::from_secs(5);

/// The looks of a process.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// When the one began that is not over: still under way, or given up.
    began: Option<Instant>,
    was_slow: bool,
    renewed: Option<Instant>,
}

impl Looks {
    /// A look begins. Answers whether it is one that has all snapshots renewed.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let slow = self.was_slow || self.began.is_some();
        self.began = Some(now);
        let renews = slow && self.renewed.is_none_or(|at| now >= at + PAUSE);
        if renews {
            self.renewed = Some(now);
        }
        renews
    }

    /// It is over.
    pub(super) fn end(&mut self, now: Instant) {
        let began = self.began.take();
        self.was_slow = began.is_some_and(|began| now >= began + SLOW);
    }

    /// Whether a step of the sequencer remembers its snapshot although it has found nothing.
    pub(super) fn is_renewing(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|at| now < at + RENEWING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_looks_renew_the_snapshots_now_and_then() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        for (begin, end, renews) in [
            (0, 10, false),
            (100, 220, false),
            (1000, 1150, true),
            (2000, 2010, false),
            (10_000, 10_200, false),
            (11_100, 11_110, true),
            (30_000, 30_001, false),
        ] {
            assert_eq!(looks.begin(at(begin)), renews, "{begin}");
            looks.end(at(end));
        }
        assert!(looks.is_renewing(at(12_000)));
        assert!(!looks.is_renewing(at(17_000)));
    }

    #[test]
    fn a_look_that_was_given_up_was_slow() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        assert!(!looks.begin(now));
        assert!(looks.begin(now));
    }
}
