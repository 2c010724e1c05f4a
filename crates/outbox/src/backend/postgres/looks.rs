//! How long the looks for new messages take. A partition remembers the snapshot in which something was
//! last found in it, and a look walks over everything that was written since: also over the millions of
//! rows of a transaction that is still open, each time. When that takes long, or so long that looks come
//! less often for it, every partition is sent through the sequencer once, which remembers the snapshot of
//! the day. Plain state.

use std::time::Duration;

use tokio::time::Instant;

/// A look that takes so long is slow.
const SLOW: Duration = Duration::from_millis(100);
/// So many in a row that take longer than this are slow too: the scout rests ten times as long, and more
/// than 80 ms is late. One alone may have been a busy machine's doing.
const LATE: Duration = Duration::from_millis(8);
const LATE_IN_A_ROW: u32 = 3;
/// How often snapshots are renewed at most, for that writes a row per partition; less and less often
/// where it does not help, for it is the way to the database that takes so long,
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// and how long sequencers have for it.
const RENEWING: Duration = Duration::from_secs(5);

/// The looks of a process.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// When the one began that is not over: still under way, or given up.
    began: Option<Instant>,
    was_slow: bool,
    /// How many in a row were late.
    late: u32,
    renewed: Option<Instant>,
    /// How often that was for late looks, of which none was quick since.
    in_vain: u32,
    /// Whether the one that is not over has all snapshots renewed: it looks at no message, and that it is
    /// quick says nothing.
    renews: bool,
}

impl Looks {
    /// A look begins. Answers whether it is one that has all snapshots renewed.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let slow = self.was_slow || self.began.is_some();
        let late = self.late >= LATE_IN_A_ROW;
        self.began = Some(now);
        let pause = match slow {
            true => PAUSE,
            false => (PAUSE * (1 << self.in_vain.saturating_sub(1).min(10))).min(LONGEST_PAUSE),
        };
        let renews = (slow || late) && self.renewed.is_none_or(|at| now >= at + pause);
        if renews {
            self.renewed = Some(now);
            self.in_vain += u32::from(!slow);
        }
        self.renews = renews;
        renews
    }

    /// It is over.
    pub(super) fn end(&mut self, now: Instant) {
        let began = self.began.take();
        self.was_slow = began.is_some_and(|began| now >= began + SLOW);
        if self.renews {
            // The next ones show whether it helped.
            self.late = 0;
        } else if began.is_some_and(|began| now > began + LATE) {
            self.late = self.late.saturating_add(1);
        } else {
            (self.late, self.in_vain) = (0, 0);
        }
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
            (0, 5, false),
            (100, 220, false),
            (1000, 1150, true),
            (2000, 2005, false),
            (10_000, 10_200, false),
            (11_100, 11_105, true),
            (30_000, 30_001, false),
        ] {
            assert_eq!(looks.begin(at(begin)), renews, "{begin}");
            looks.end(at(end));
        }
        assert!(looks.is_renewing(at(12_000)));
        assert!(!looks.is_renewing(at(17_000)));
    }

    #[test]
    fn late_looks_renew_the_snapshots_and_less_often_where_that_does_not_help() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let mut renewed = Vec::new();
        for begin in (0..200_000).step_by(500) {
            let renews = looks.begin(at(begin));
            renewed.extend(renews.then_some(begin));
            // One that renews looks at no message.
            looks.end(at(begin + if renews { 1 } else { 20 }));
        }
        assert_eq!(renewed, [1_500, 11_500, 31_500, 71_500, 151_500]);
        looks.begin(at(200_000));
        looks.end(at(200_001));
        assert!(!looks.begin(at(200_500)), "one quick look ends it");
    }

    #[test]
    fn a_look_that_was_given_up_was_slow() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        assert!(!looks.begin(now));
        assert!(looks.begin(now));
    }
}
