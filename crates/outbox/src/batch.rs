//! What a leased handler works through: messages in order, and what has become of each. Acks name
//! messages, so that no misuse moves the cursor over one that was neither acked nor rejected.

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::message::OutboxMessage;

/// What has become of a message so far.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Open,
    Acked,
    Rejected(String),
}

/// Messages of one partition, in order.
///
/// Only the contiguous beginning of acked and rejected messages is settled; whatever stands behind a
/// gap is delivered again.
#[derive(Debug)]
pub struct Batch<'a> {
    messages: &'a [OutboxMessage],
    fates: Vec<Fate>,
    next: usize,
    deadline: Instant,
    stop: CancellationToken,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        messages: &'a [OutboxMessage],
        deadline: Instant,
        stop: CancellationToken,
    ) -> Self {
        Self {
            messages,
            fates: vec![Fate::Open; messages.len()],
            next: 0,
            deadline,
            stop,
        }
    }

    /// The next message, and `None` after the last.
    pub fn next_msg(&mut self) -> Option<&'a OutboxMessage> {
        let message = self.messages.get(self.next)?;
        self.next += 1;
        Some(message)
    }

    /// The next `n` messages, fewer at the end, none after it.
    pub fn next_chunk(&mut self, n: usize) -> &'a [OutboxMessage] {
        let rest = &self.messages[self.next..];
        let chunk = &rest[..n.min(rest.len())];
        self.next += chunk.len();
        chunk
    }

    /// Notes that a message was handled. A message of another batch is ignored; a rejected one stays
    /// rejected.
    pub fn ack(&mut self, message: &OutboxMessage) {
        if let Some(fate @ Fate::Open) = self.fate_of(message) {
            *fate = Fate::Acked;
        }
    }

    /// Notes that messages were handled.
    pub fn ack_chunk(&mut self, messages: &[OutboxMessage]) {
        for message in messages {
            self.ack(message);
        }
    }

    /// Notes that a message can never be handled: it goes to the dead letters. A message of another
    /// batch is ignored; an acked one stays acked.
    pub fn reject(&mut self, message: &OutboxMessage, reason: impl Into<String>) {
        if let Some(fate @ Fate::Open) = self.fate_of(message) {
            *fate = Fate::Rejected(reason.into());
        }
    }

    fn fate_of(&mut self, message: &OutboxMessage) -> Option<&mut Fate> {
        // Their numbers have no holes.
        let first = self.messages.first()?.seq;
        let place = usize::try_from(message.seq.checked_sub(first)?).ok()?;
        self.messages.get(place).filter(|own| own.is(message))?;
        self.fates.get_mut(place)
    }

    /// How much time is left. Zero means: start nothing new, for the lease runs out and the handler is dropped
    /// soon, or the process stops, once there is something to settle.
    pub fn remaining(&self) -> Duration {
        if self.next > 0 && self.stop.is_cancelled() {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns when the process is told to stop: nobody should wait for longer than that.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// How many messages the batch has.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether it has none. A handler is never given such a batch.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages would be settled now: the contiguous beginning of acked and rejected ones.
    pub fn processed(&self) -> usize {
        self.fates
            .iter()
            .take_while(|fate| **fate != Fate::Open)
            .count()
    }

    /// The rejected messages among those that would be settled, with the reasons.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = (&'a OutboxMessage, &str)> {
        let settled = self.messages.iter().zip(&self.fates).take(self.processed());
        settled.filter_map(|(message, fate)| match fate {
            Fate::Rejected(reason) => Some((message, reason.as_str())),
            Fate::Open | Fate::Acked => None,
        })
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn once_the_process_stops_nothing_new_is_begun() {
        let messages = [(); 2].map(|()| crate::testing::message("body", "t"));
        let (deadline, stop) = (
            Instant::now() + Duration::from_hours(1),
            CancellationToken::new(),
        );
        let mut batch = Batch::new(&messages, deadline, stop.clone());
        stop.cancel();
        batch.stopping().await;
        assert!(!batch.remaining().is_zero(), "there is nothing to settle");
        batch.next_msg();
        assert!(batch.remaining().is_zero());
    }
}
