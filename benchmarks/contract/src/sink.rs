//! What handlers do with a message: note that it came. Cheap enough not to be what is measured.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::now_nanos;
use crate::payload::Message;

/// Notes what was handled: how often, in which order, and, if asked, when.
#[derive(Debug)]
pub struct Sink {
    seen: Vec<AtomicU64>,
    last: Vec<AtomicU64>,
    times: Option<Mutex<Vec<(u64, u64)>>>,
    handled: AtomicU64,
    duplicates: AtomicU64,
    strangers: AtomicU64,
    out_of_order: AtomicU64,
    id_sum: AtomicU64,
    first_nanos: AtomicU64,
    last_nanos: AtomicU64,
}

/// What a [`Sink`] noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) handled: u64,
    pub(crate) duplicates: u64,
    pub(crate) strangers: u64,
    pub(crate) out_of_order: u64,
    pub(crate) id_sum: u64,
    pub(crate) first_nanos: u64,
    pub(crate) last_nanos: u64,
}

impl Sink {
    /// For ids below `capacity`.
    pub fn new(capacity: u64, partitions: u16, timestamps: bool) -> Self {
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            seen: zeros(usize::try_from(capacity / 64 + 1).unwrap_or(0)),
            last: zeros(usize::from(partitions)),
            times: timestamps.then(Mutex::default),
            handled: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
            id_sum: AtomicU64::new(0),
            first_nanos: AtomicU64::new(u64::MAX),
            last_nanos: AtomicU64::new(0),
        }
    }

    /// A batch was handled.
    pub fn handle<'a>(&self, payloads: impl IntoIterator<Item = &'a [u8]>) {
        let now = now_nanos();
        let mut count = 0;
        for payload in payloads {
            count += 1;
            self.note(payload, now);
        }
        if count > 0 {
            self.handled.fetch_add(count, Relaxed);
            self.first_nanos.fetch_min(now, Relaxed);
            self.last_nanos.fetch_max(now, Relaxed);
        }
    }

    fn note(&self, payload: &[u8], now: u64) {
        let id = Message::id_of(payload).unwrap_or(u64::MAX);
        let Some(word) = usize::try_from(id / 64)
            .ok()
            .and_then(|at| self.seen.get(at))
        else {
            self.strangers.fetch_add(1, Relaxed);
            return;
        };
        let bit = 1 << (id % 64);
        if word.fetch_or(bit, Relaxed) & bit != 0 {
            self.duplicates.fetch_add(1, Relaxed);
            return;
        }
        self.id_sum.fetch_add(id, Relaxed);
        let partition = usize::try_from(id % self.last.len() as u64).unwrap_or(0);
        if self.last[partition].fetch_max(id + 1, Relaxed) > id + 1 {
            self.out_of_order.fetch_add(1, Relaxed);
        }
        if let Some(times) = &self.times {
            times
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .push((id, now));
        }
    }

    /// How many messages came so far, again and again ones included.
    pub fn handled(&self) -> u64 {
        self.handled.load(Relaxed)
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            handled: self.handled(),
            duplicates: self.duplicates.load(Relaxed),
            strangers: self.strangers.load(Relaxed),
            out_of_order: self.out_of_order.load(Relaxed),
            id_sum: self.id_sum.load(Relaxed),
            first_nanos: self.first_nanos.load(Relaxed),
            last_nanos: self.last_nanos.load(Relaxed),
        }
    }

    pub(crate) fn times(&self) -> Vec<(u64, u64)> {
        let times = self.times.as_ref().map(|times| times.lock());
        times.map_or_else(Vec::new, |times| {
            times
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_strangers_and_disorder_are_noticed() {
        let sink = Sink::new(100, 4, true);
        let payload = |id| Message::new(id, 0, 32).payload;
        let payloads: Vec<_> = [0, 4, 8, 12, 12, 1, 9, 5, 7000].map(payload).into();
        sink.handle(payloads.iter().map(Vec::as_slice));
        let tally = sink.tally();
        assert_eq!((tally.handled, tally.duplicates), (9, 1));
        assert_eq!((tally.strangers, tally.out_of_order), (1, 1));
        assert_eq!(tally.id_sum, 4 + 8 + 12 + 1 + 9 + 5);
        assert_eq!(sink.times().len(), 7);
    }
}
