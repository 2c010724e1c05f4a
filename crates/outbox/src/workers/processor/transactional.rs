//! The transactional half of a processor: a batch is read, handled and settled in one transaction, or all of
//! it is undone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Held, Processor, Step};
use crate::backend::{
    Advance, Backend, Commit, Head, Lease, OwnTransaction, ReadLimit, Settlement,
};
use crate::engine::millis;
use crate::error::OutboxError;
use crate::handler::{Handler, HandlerResult, Transactional};
use crate::message::OutboxMessage;
use crate::patience::answer_within;
use crate::pipeline::deliver::{self, Delivery, TransactionGone, storable};

/// How often in a row a connection may be lost after a handler said that all is well before that is taken for
/// the handler's doing.
const LOSSES: u32 = 3;

impl<DB: Backend> Processor<DB> {
    pub(super) async fn transactional(
        &mut self,
        handler: &Transactional<DB>,
        held: Held,
    ) -> Result<Step, OutboxError> {
        let limit = self.limit();
        let engine = Arc::clone(&self.engine);
        let (sql, lease) = (&engine.store.sql, held.lease);
        let orphan_millis = millis(self.queue.handler_budget() + self.queue.lease.headroom);
        let open = async || {
            let mut transaction = DB::begin(&engine.store, Some(orphan_millis)).await?;
            transaction.leave_lane();
            // Waiting for a connection, or for SQLite's one writer, is not the handler's time.
            let deadline = self.deadline();
            let head = DB::advance(sql, &mut transaction, lease, None, limit).await?;
            Ok((transaction, head, deadline))
        };
        let opened = self.heard_in_turn(async {
            let opened = open().await?;
            if opened.0.may_be_ended() {
                // What is meant for a wait that is over shall not reach the handler.
                drop(opened);
                return open().await;
            }
            Ok(opened)
        });
        let (mut transaction, mut head, deadline) = match opened.await? {
            (transaction, Advance::Held(head), deadline) => (transaction, head, deadline),
            (transaction, Advance::Lost, _) => {
                self.heard(transaction.roll_back()).await?;
                return Ok(Step::Lost);
            }
        };
        let read = std::mem::take(&mut head.messages).into_iter();
        let messages = self.messages(held, head.attempts, read);
        if messages.is_empty() {
            self.heard(transaction.commit()).await?;
            return Ok(Step::Nothing);
        }
        self.tried(&messages);
        let began = Instant::now();
        // The handler has its own deadline; this one is for a savepoint that is never answered.
        let patience = self.queue.handler_budget() + self.queue.lease.duration;
        let delivered = answer_within(patience, async {
            let connection = &mut transaction;
            Ok(match handler {
                Transactional::Batch(handler) => {
                    deliver::transactional_batch(&**handler, connection, &messages, deadline).await
                }
                Transactional::Message(handler) => {
                    deliver::transactional_messages(&**handler, connection, &messages, deadline)
                        .await
                }
            })
        })
        .await?;
        self.queue.meters.handler.record(began.elapsed());
        let delivery = match delivered {
            Ok(delivery) => delivery,
            Err(gone) => {
                drop(transaction);
                return self
                    .transaction_gone(held, &head, &messages, gone, began)
                    .await;
            }
        };
        let mode = self.mode.clone();
        let (settlement, step) = self.conclude(head.cursor, &messages, delivery, limit);
        let commit = commit(sql, transaction, lease, &settlement);
        let settled = self
            .heard(commit.instrument(self.settling(&settlement)))
            .await;
        match settled {
            Ok(Advance::Held(_)) => {
                self.engine.note_settled(self.partition_id);
                self.engine.note_buried(self.partition_id, &settlement);
                self.count(&messages, &settlement, &step);
                self.losses = 0;
                Ok(self.went_on(step))
            }
            Ok(Advance::Lost) => Ok(Step::Lost),
            // What a handler did can make the settlement or the commit fail for good: a constraint
            // that is checked last. Unless a message was alone nobody knows whose doing it was.
            Err(error @ OutboxError::Database(_)) if !error.is_retryable() => {
                self.mode = mode;
                let before = usize::from(messages.len() > 1);
                let gone = TransactionGone::Ended { before, error };
                self.transaction_gone(held, &head, &messages, gone, began)
                    .await
            }
            Err(error) => Err(error),
        }
    }

    /// Everything the batch wrote is undone, or out of our hands. The failure is charged to the head
    /// if it was the head's; otherwise the next batch ends right before the message at fault.
    async fn transaction_gone(
        &mut self,
        held: Held,
        head: &Head,
        messages: &[OutboxMessage],
        gone: TransactionGone,
        began: Instant,
    ) -> Result<Step, OutboxError> {
        let (before, reason) = match gone {
            TransactionGone::Stopped { before, reason } => {
                self.end_session(head, began.elapsed()).await;
                (before, reason)
            }
            TransactionGone::Ended { before, error } => (
                before,
                format!("the handler's transaction ended before its time: {error}"),
            ),
            // A connection may be lost by anybody's doing; time after time it is the handler's.
            TransactionGone::LostAfter { before, error } if self.losses >= LOSSES => {
                (before, format!("the handler's connection is gone: {error}"))
            }
            TransactionGone::LostAfter { error, .. } => {
                self.losses += 1;
                return Err(error);
            }
            // As with a commit that was lost: all come again, and nobody is charged.
            TransactionGone::Lost(error) => return Err(error),
        };
        let result = HandlerResult::Retry {
            reason: storable(&reason),
        };
        if before > 0 {
            tracing::warn!(
                partition_id = self.partition_id.0,
                before,
                reason,
                "batch undone"
            );
            // At once and not at the threshold: every further try would undo the others again, and on
            // databases where DDL commits it would commit them again.
            let reject = HandlerResult::Reject { reason };
            self.transition(&reject, u32::try_from(before).ok());
            return Ok(Step::Settled {
                messages: 0,
                full: false,
                result,
            });
        }
        let delivery = Delivery {
            settled: 0,
            dead_letters: Vec::new(),
            result,
            blamed: matches!(
                self.queue.handler,
                Some(Handler::Transactional(Transactional::Message(_)))
            ),
        };
        let (settlement, step) = self.conclude(head.cursor, messages, delivery, ReadLimit::ONE);
        let (settled, nothing) = (Some(&settlement), ReadLimit::NOTHING);
        match self
            .advance(held.lease, settled, nothing, Commit::Durable)
            .await?
        {
            Advance::Held(_) => {
                self.engine.note_settled(self.partition_id);
                self.engine.note_buried(self.partition_id, &settlement);
                self.count(messages, &settlement, &step);
                if !settlement.dead_letters.is_empty() {
                    self.losses = 0;
                }
                if let Some(held) = &mut self.held {
                    // That attempt is settled; the next one is another.
                    held.charging = None;
                }
                Ok(step)
            }
            Advance::Lost => Ok(Step::Lost),
        }
    }

    /// A server does not notice that its client has gone while it runs a statement: a handler that was
    /// stopped in the middle of one would keep its locks, and its partition, until that ends by itself.
    async fn end_session(&self, head: &Head, open_for: Duration) {
        let Some(session) = head.session else { return };
        let ended = DB::end_session(&self.engine.store, session, open_for);
        if let Err(error) = self.heard(ended).await {
            let partition_id = self.partition_id.0;
            tracing::warn!(partition_id, session, %error, "a stopped handler's session lives on");
        }
    }
}

/// Settles what was delivered in a transaction, and ends it.
async fn commit<DB: Backend>(
    sql: &DB::Statements,
    mut transaction: OwnTransaction<DB>,
    lease: Lease,
    settlement: &Settlement,
) -> Result<Advance, OutboxError> {
    let (settlement, nothing) = (Some(settlement), ReadLimit::NOTHING);
    let settled = DB::advance(sql, &mut transaction, lease, settlement, nothing).await?;
    match settled {
        Advance::Lost => transaction.roll_back().await?,
        Advance::Held(_) => transaction.commit().await?,
    }
    Ok(settled)
}
