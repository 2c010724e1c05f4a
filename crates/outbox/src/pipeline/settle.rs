//! What a delivery means for the partition: where the cursor goes, what is charged to whom, what goes
//! to the dead letters. Pure.

use crate::backend::{Seq, Settlement};
use crate::handler::HandlerResult;
use crate::message::OutboxMessage;
use crate::pipeline::deliver::{Delivery, bury_exhausted, bury_rejected, storable};

/// Decides what to write after `messages`, which begin right behind `cursor`, were delivered.
///
/// A failure is charged to the first message that was not settled, and to nobody else. It does not
/// matter whether its attempt was written down before the handler ran: the number is the same.
pub(crate) fn settlement(
    cursor: Seq,
    messages: &[OutboxMessage],
    delivery: &mut Delivery,
    max_attempts: Option<u32>,
) -> Settlement {
    bury_rejected(delivery, messages);
    #[cfg(mutants)]
    if crate::mutants::Mutant::CursorByCount.is_alive() {
        delivery.settled = messages.len();
    }
    let mut attempts = messages
        .get(delivery.settled)
        .map_or(0, |head| head.attempts);
    let mut last_error = None;
    if let Some(head) = messages.get(delivery.settled) {
        match delivery.result.clone() {
            HandlerResult::Success => {}
            // Several are left and nobody knows which is at fault: they come one at a time.
            HandlerResult::Reject { reason } => last_error = Some(storable(&reason)),
            HandlerResult::Retry { reason } => {
                last_error = Some(storable(&reason));
                attempts = attempts.saturating_add(1);
                let exhausted = max_attempts.filter(|max| attempts >= *max);
                let alone = delivery.blamed || messages.len() - delivery.settled == 1;
                match exhausted {
                    None => {}
                    Some(_) if alone => {
                        bury_exhausted(delivery, head, &reason);
                        (attempts, last_error) = (0, None);
                    }
                    // With others beside it nobody knows whether it is at fault: its last attempt is one that
                    // it has alone, and whoever takes over finds it not used up.
                    Some(max) => attempts = max - 1,
                }
            }
        }
    }
    Settlement {
        cursor: Seq(cursor.0 + delivery.settled as i64),
        cursor_id: delivery
            .settled
            .checked_sub(1)
            .map(|last| messages[last].id),
        attempts,
        last_error,
        dead_letters: std::mem::take(&mut delivery.dead_letters),
    }
}
