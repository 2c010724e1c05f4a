//! The leased half of a processor: what is read ahead, handed out batch by batch, and settled together a
//! little later.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Held, Processor, Step};
use crate::backend::{Advance, Backend, Commit, Lease, ReadLimit, Seq, StoredMessage};
use crate::engine::Owed;
use crate::error::OutboxError;
use crate::handler::{DynLeased, HandlerResult};
use crate::partition_mode::PartitionMode;
use crate::patience::answer_in_contact;
use crate::pipeline::deliver;

/// What a leased handler has acked is written down at most so long after. Until then it waits for more
/// to be written with it, or for the next read.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_millis(50);
/// The most messages that are read at once for a handler that is quick enough to go through them in
/// that time.
const READ_AHEAD: u32 = 1000;
/// How long a settlement that failed rests at most before it is tried again.
const LONGEST_SETTLE_REST: Duration = Duration::from_millis(500);

/// What was read along with the last settlement.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Everything at or below this is handled.
    cursor: Seq,
    /// Of the first message.
    attempts: u32,
    messages: std::vec::IntoIter<StoredMessage>,
    /// When it came, or was last settled up to.
    since: Instant,
    /// Until when a handler may work on it: counted from before the lease was last renewed.
    deadline: Instant,
    /// Whether as many came as were asked for.
    full: bool,
    /// Whether the partition was paused then.
    paused: bool,
}

impl<DB: Backend> Processor<DB> {
    pub(super) async fn leased(
        &mut self,
        handler: &dyn DynLeased,
        each: bool,
        held: Held,
    ) -> Result<Step, OutboxError> {
        let ahead = self.ahead.take().filter(|ahead| ahead.messages.len() > 0);
        let mut ahead = match ahead {
            Some(ahead) => ahead,
            None => match self.read_on(held.lease, self.read_limit()).await? {
                Some(ahead) => ahead,
                None => return Ok(Step::Lost),
            },
        };
        let limit = self.limit();
        let (attempts, batch) = (std::mem::take(&mut ahead.attempts), limit.messages as usize);
        let messages = self.messages(held, attempts, ahead.messages.by_ref().take(batch));
        if messages.is_empty() {
            return Ok(Step::Nothing);
        }
        if Instant::now() >= ahead.deadline {
            // The read itself took so long, for a connection or a lock: nobody was tried, so nobody
            // failed. The next read renews the lease.
            let partition_id = self.partition_id.0;
            tracing::warn!(
                partition_id,
                "reading took longer than the handler's budget"
            );
            self.mode = PartitionMode::cautious();
            return Ok(Step::Settled {
                messages: 0,
                full: true,
                result: HandlerResult::Success,
            });
        }
        let lost = self.tried(&messages);
        let began = Instant::now();
        let handled = deliver::leased(handler, each, &messages, ahead.deadline, &lost, &self.stop);
        let Some(delivery) = self.paying(held.lease, &lost, handled).await else {
            return Ok(Step::Lost);
        };
        self.queue.meters.handler.record(began.elapsed());
        let (mut settlement, step) = self.conclude(ahead.cursor, &messages, delivery, limit);
        self.count(&messages, &settlement, &step);
        let all = settlement.cursor.0 == messages.last().map_or(0, |last| last.seq);
        ahead.cursor = settlement.cursor;
        let clean = all && settlement.dead_letters.is_empty() && !held.careful;
        let until = ahead.deadline + self.queue.lease.headroom;
        {
            let mut note = self.desk().note();
            // One that moves no further stands for what was owed before, whose last message is at its
            // cursor.
            let before = note.owed.take().and_then(|owed| owed.settlement.cursor_id);
            settlement.cursor_id = settlement.cursor_id.or(before);
            note.owed = Some(Owed { settlement, until });
        }
        self.go_on(held.lease, ahead, clean, step).await
    }

    /// After a batch: what it settled waits for more of a quick handler, or is written down now; what was
    /// read ahead is next, or what is read along with the settlement.
    async fn go_on(
        &mut self,
        lease: Lease,
        mut ahead: Ahead,
        clean: bool,
        step: Step,
    ) -> Result<Step, OutboxError> {
        let Step::Settled { result, .. } = &step else {
            return Ok(step);
        };
        let clean = clean && *result == HandlerResult::Success;
        let quick = clean && ahead.since.elapsed() < SETTLE_WITHIN;
        let more = ahead.messages.len() > 0;
        if quick && (more || !ahead.full) {
            self.ahead = Some(ahead).filter(|_| more);
            return Ok(self.went_on(step.with_more(more)));
        }
        if clean && more {
            let Some(settled) = self.read_on(lease, ReadLimit::NOTHING).await? else {
                return Ok(Step::Lost);
            };
            (ahead.since, ahead.deadline) = (settled.since, settled.deadline);
            self.stride /= 2;
            self.ahead = Some(ahead).filter(|_| !settled.paused);
            return Ok(self.went_on(step.with_more(true)));
        }
        self.stride = if quick {
            (2 * self.read_limit().messages).min(READ_AHEAD)
        } else {
            1
        };
        let limit = match result {
            // A backoff follows.
            HandlerResult::Retry { .. } => ReadLimit::NOTHING,
            HandlerResult::Success | HandlerResult::Reject { .. } => self.read_limit(),
        };
        let Some(next) = self.read_on(lease, limit).await? else {
            return Ok(Step::Lost);
        };
        let more = next.messages.len() > 0;
        self.ahead = Some(next).filter(|_| more);
        Ok(self.went_on(step.with_more(more)))
    }

    /// Settles what is owed, and reads on. `None`: the lease is lost.
    async fn read_on(&self, lease: Lease, limit: ReadLimit) -> Result<Option<Ahead>, OutboxError> {
        let owed = self.desk().note().owed.take();
        let (advance, deadline) = match &owed {
            Some(owed) => self.settle(lease, owed, limit).await?,
            None => {
                let read = self.advance_in_time(lease, None, limit, Commit::Relaxed);
                read.await?
            }
        };
        let Advance::Held(head) = advance else {
            return Ok(None);
        };
        if let Some(owed) = &owed {
            self.engine.note_settled(self.partition_id);
            self.engine.note_buried(self.partition_id, &owed.settlement);
        }
        let bytes: usize = head.messages.iter().map(|one| one.payload.len()).sum();
        Ok(Some(Ahead {
            cursor: head.cursor,
            attempts: head.attempts,
            paused: head.paused,
            full: head.messages.len() >= limit.messages as usize || bytes as u64 >= limit.bytes,
            messages: head.messages.into_iter(),
            since: Instant::now(),
            deadline,
        }))
    }

    /// Settles what is owed at once.
    #[cfg(feature = "testing")]
    pub(crate) async fn pay_now(&self) -> Result<(), OutboxError> {
        self.note_handling(false);
        match self.held {
            Some(held) => self.pay(held.lease).await,
            None => Ok(()),
        }
    }

    /// Settles what is owed.
    pub(super) async fn pay(&self, lease: Lease) -> Result<(), OutboxError> {
        let owes = self.desk().note().owed.is_some();
        if owes {
            self.read_on(lease, ReadLimit::NOTHING).await?;
        }
        Ok(())
    }

    /// Waits for a handler. What was owed before it began does not wait for it to end, if it takes
    /// long. `None`: the lease is lost.
    async fn paying<T>(
        &self,
        lease: Lease,
        lost: &CancellationToken,
        handler: impl Future<Output = T>,
    ) -> Option<T> {
        let mut handler = std::pin::pin!(handler);
        let owes = self.desk().note().owed.is_some();
        if !owes {
            return Some(handler.await);
        }
        if let Ok(answer) = tokio::time::timeout(SETTLE_WITHIN, handler.as_mut()).await {
            return Some(answer);
        }
        let owed = self.desk().note().owed.take();
        let Some(owed) = owed else {
            return Some(handler.await);
        };
        // In a task of its own: a handler that keeps its thread must not keep a transaction open.
        let engine = Arc::clone(&self.engine);
        let (limit, mut contact) = (self.patience(), engine.contact.subscribe());
        let unpaid = owed.clone();
        let payment = tokio::spawn(async move {
            let settled = async {
                let _seat = engine.store.workers.seat().await;
                engine.settle_owed(lease, &owed).await
            };
            answer_in_contact(limit, &mut contact, settled).await
        });
        let payment = async {
            match payment.await {
                Ok(Ok(Advance::Held(_))) => self.engine.note_settled(self.partition_id),
                Ok(Ok(Advance::Lost)) => {
                    lost.cancel();
                    return false;
                }
                Ok(Err(error)) => self.owes_still(unpaid, &error),
                Err(error) => self.owes_still(unpaid, &error),
            }
            true
        };
        let (answer, held) = tokio::join!(handler, payment);
        held.then_some(answer)
    }

    /// What could not be settled is settled with what comes after it.
    fn owes_still(&self, owed: Owed, problem: &dyn Display) {
        let partition_id = self.partition_id.0;
        tracing::warn!(partition_id, %problem, "settling has to wait for the handler");
        self.desk().note().owed.get_or_insert(owed);
    }

    /// Settles, and tries again while the lease lasts: what was handled should not be handled again
    /// for a deadlock's or a lost connection's sake. A settlement that got through although its reply
    /// was lost is settled twice, which changes nothing.
    async fn settle(
        &self,
        lease: Lease,
        owed: &Owed,
        limit: ReadLimit,
    ) -> Result<(Advance, Instant), OutboxError> {
        // Renewed meanwhile, it may last longer than it did at first.
        let until = owed.until.max(Instant::now() + self.queue.lease.headroom);
        let settlement = Some(&owed.settlement);
        let mut rest = Duration::from_millis(5);
        loop {
            match self
                .advance_in_time(lease, settlement, limit, Commit::Relaxed)
                .await
            {
                Err(error) if error.is_retryable() && Instant::now() + rest < until => {
                    let partition_id = self.partition_id.0;
                    tracing::info!(partition_id, %error, "settling failed and is tried again");
                    tokio::time::sleep(rest).await;
                    rest = (rest * 2).min(LONGEST_SETTLE_REST);
                }
                result => return result,
            }
        }
    }
}

impl Step {
    /// The same, and whether there is more to do at once.
    fn with_more(mut self, more: bool) -> Self {
        if let Self::Settled { full, .. } = &mut self {
            *full = more;
        }
        self
    }
}
