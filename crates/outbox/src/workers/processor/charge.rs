//! Taking over from a holder that did not come back.

use super::{Held, Processor, Step};
use crate::backend::{Advance, Backend, Commit, ReadLimit, Settlement};
use crate::error::OutboxError;
use crate::handler::HandlerResult;
use crate::pipeline::deliver::{self, Delivery};

impl<DB: Backend> Processor<DB> {
    /// Taking over from a holder that did not release: the head's attempt is written down first, so
    /// that a message that kills its process is found out. `Some` when there is nothing to deliver.
    pub(super) async fn charge(&mut self, held: Held) -> Result<Option<Step>, OutboxError> {
        let Advance::Held(head) = self
            .advance(held.lease, None, ReadLimit::ONE, Commit::Relaxed)
            .await?
        else {
            return Ok(Some(Step::Lost));
        };
        let Some((seq, id)) = head.messages.first().map(|first| (first.seq, first.id)) else {
            return Ok(Some(Step::Nothing));
        };
        let attempts = match held.charging {
            Some((charged, attempts)) if charged == seq => attempts,
            _ => head.attempts.saturating_add(1),
        };
        if let Some(held) = &mut self.held {
            held.charging = Some((seq, attempts));
        }
        let mut charge = Settlement {
            cursor: head.cursor,
            cursor_id: None,
            attempts,
            last_error: Some("the process that handled it did not come back".to_owned()),
            dead_letters: Vec::new(),
        };
        let exhausted = self.queue.max_attempts.is_some_and(|max| attempts > max);
        if exhausted {
            let messages = self.messages(held, head.attempts, head.messages.into_iter());
            let result = HandlerResult::Success;
            let mut delivery = Delivery {
                settled: 0,
                dead_letters: Vec::new(),
                result,
                blamed: true,
            };
            let reason = charge.last_error.take().unwrap_or_default();
            deliver::bury_exhausted(&mut delivery, &messages[0], &reason);
            charge.cursor = seq;
            charge.cursor_id = Some(id);
            charge.attempts = 0;
            charge.dead_letters = delivery.dead_letters;
        }
        if self
            .advance(
                held.lease,
                Some(&charge),
                ReadLimit::NOTHING,
                Commit::Durable,
            )
            .await?
            == Advance::Lost
        {
            return Ok(Some(Step::Lost));
        }
        if exhausted {
            self.engine.note_settled(self.partition_id);
            self.engine.note_buried(self.partition_id, &charge);
            return Ok(Some(Step::Settled {
                messages: 1,
                full: true,
                result: HandlerResult::Success,
            }));
        }
        Ok(None)
    }
}
