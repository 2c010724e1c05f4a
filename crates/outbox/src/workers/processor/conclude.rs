//! What follows from a delivery: what is to be settled, and what is counted and told.

use std::time::SystemTime;

use super::{Processor, Step};
use crate::backend::{Backend, ReadLimit, Seq, Settlement};
use crate::handler::HandlerResult;
use crate::message::OutboxMessage;
use crate::partition_mode::PartitionMode;
use crate::pipeline::deliver::Delivery;
use crate::pipeline::settle::settlement;

impl<DB: Backend> Processor<DB> {
    pub(super) fn conclude(
        &mut self,
        cursor: Seq,
        messages: &[OutboxMessage],
        mut delivery: Delivery,
        limit: ReadLimit,
    ) -> (Settlement, Step) {
        let settlement = settlement(cursor, messages, &mut delivery, self.queue.max_attempts);
        let queue = self.queue.name.as_str();
        self.telling.tell(queue, self.partition, &settlement);
        let settlement = settlement.writable(self.engine.store.habits);
        let settled = u32::try_from(delivery.settled).unwrap_or(u32::MAX);
        let processed = match delivery.result {
            // Only a whole batch is rejected so, and nobody knows for whose sake.
            HandlerResult::Reject { .. } => None,
            HandlerResult::Success | HandlerResult::Retry { .. } => Some(settled),
        };
        self.transition(&delivery.result, processed);
        let last = self.queue.max_attempts.map(|max| max - 1);
        if settlement.last_error.is_some() && last.is_some_and(|last| settlement.attempts >= last) {
            // Its last attempt, which it should have alone.
            self.mode.state = PartitionMode::cautious().state;
        }
        let bytes: u64 = messages
            .iter()
            .map(|message| message.payload.len() as u64)
            .sum();
        let full = messages.len() == limit.messages as usize
            || bytes >= limit.bytes
            || delivery.settled < messages.len();
        (
            settlement,
            Step::Settled {
                messages: settled,
                full,
                result: delivery.result,
            },
        )
    }

    /// Counts how the delivery of these messages ended.
    pub(super) fn count(&self, messages: &[OutboxMessage], settlement: &Settlement, step: &Step) {
        let Step::Settled {
            messages: settled,
            result,
            ..
        } = step
        else {
            return;
        };
        let meters = &self.queue.meters;
        let buried = settlement.dead_letters.len() as u64;
        // One that was tried too often is among them, and was not rejected.
        let exhausted = matches!(result, HandlerResult::Retry { .. })
            && settlement.last_error.is_none()
            && buried > 0;
        meters
            .delivered
            .increment(u64::from(*settled).saturating_sub(buried));
        meters.rejected.increment(buried - u64::from(exhausted));
        if matches!(result, HandlerResult::Retry { .. }) && !exhausted {
            meters.retried.increment(1);
        }
        let now = SystemTime::now();
        for message in &messages[..*settled as usize] {
            let latency = now.duration_since(message.created_at);
            meters.latency.record(latency.unwrap_or_default());
        }
    }
}
