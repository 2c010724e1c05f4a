//! What a processor tells an operator of its failures: the first, another one, the same one now and then, and
//! their end.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Settlement;

/// How often the same failure is told.
const AGAIN: Duration = Duration::from_mins(1);

/// What was told last, and when.
#[derive(Debug, Default)]
pub(super) struct Telling(Option<(String, Instant)>);

impl Telling {
    pub(super) fn tell(&mut self, queue: &str, partition: u32, settlement: &Settlement) {
        if let Some(first) = settlement.dead_letters.first() {
            let (count, seq) = (settlement.dead_letters.len(), first.seq.0);
            let reason = &first.reason;
            tracing::warn!(
                queue,
                partition,
                count,
                seq,
                reason,
                "messages became dead letters"
            );
        }
        let Some(error) = &settlement.last_error else {
            if settlement.cursor_id.is_some() && self.0.take().is_some() {
                tracing::info!(queue, partition, "deliveries go on");
            }
            return;
        };
        let is_told = |(told, at): &(String, Instant)| told == error && at.elapsed() < AGAIN;
        if !self.0.as_ref().is_some_and(is_told) {
            let attempts = settlement.attempts;
            tracing::warn!(
                queue,
                partition,
                attempts,
                error,
                "a delivery failed and is tried again"
            );
            self.0 = Some((error.clone(), Instant::now()));
        }
    }
}
