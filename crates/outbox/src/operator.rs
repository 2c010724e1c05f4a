//! What an operator does to a running outbox: pause, resume, skip, repair. Dead letters have a file of their
//! own.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{
    Advance, Backend, Burial, Commit, Incarnation, Lease, PartitionId, ReadLimit, Seq, Settlement,
    Takeover,
};
use crate::engine::{Engine, millis};
use crate::error::OutboxError;
use crate::message::{OutboxMessage, OutboxMessageId};
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};
use crate::pipeline::deliver::storable;
use crate::queue::{Partitions, QueueName};

/// How long an operator tries to take a partition from its holder, and keeps it at most.
const SEIZE: Duration = Duration::from_secs(5);
/// The most messages that are looked at together.
const MOST_PEEKED: u32 = 1_000;
/// How soon it is tried again.
const SEIZE_AGAIN: Duration = Duration::from_millis(20);

/// Pausing, skipping, and repair.
impl<DB: Backend> Outbox<DB> {
    /// The queues this outbox knows, in the order of their names, and the partitions of each.
    pub fn queues(&self) -> Vec<(QueueName, Partitions)> {
        let queues = self.engine.queues.values();
        let mut queues: Vec<_> = queues
            .map(|queue| (queue.name.clone(), queue.partitions))
            .collect();
        queues.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        queues
    }

    /// The queues there are in the database by now, also those that this outbox does not know because they
    /// were made after it started.
    pub async fn all_queues(&self) -> Result<Vec<(QueueName, Partitions)>, OutboxError> {
        let queues = answer_within(OPERATOR_PATIENCE, DB::queues(&self.engine.store)).await?;
        let mut queues = queues
            .into_iter()
            .map(|(name, partitions)| Ok((name.parse()?, Partitions::try_from(partitions)?)))
            .collect::<Result<Vec<(QueueName, Partitions)>, OutboxError>>()?;
        queues.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        Ok(queues)
    }

    /// The same outbox with every queue there is by now; nothing works in it.
    pub async fn with_all_queues(&self) -> Result<Self, OutboxError> {
        let Engine { store, origin, .. } = &*self.engine;
        let mut builder = Self::builder(store.pool.clone())
            .table_prefix(store.prefix.to_string())
            .origin(&**origin)
            .without_workers()
            .every_queue();
        let engine = builder.prepare().await?;
        Ok(Self { engine })
    }

    /// The messages that wait in a partition, in the order in which they will come, from the number
    /// `from` on or from the head, and at most `limit`, of which more than 1000 are 1000. It takes no lease and changes nothing; what
    /// committed a moment ago may not have its number yet.
    pub async fn peek(
        &self,
        queue: &str,
        partition: u32,
        from: Option<i64>,
        limit: u32,
    ) -> Result<Vec<OutboxMessage>, OutboxError> {
        let queue = self.queue(queue)?;
        let partition_id = queue.partition_id(partition)?;
        // Numbers beyond these are nobody's, and only overflow.
        let from = from.map(|from| Seq(from.clamp(1, i64::MAX >> 8)));
        let limit = limit.min(MOST_PEEKED);
        let peek = DB::peek(&self.engine.store, partition_id, from, limit);
        let stored = answer_within(OPERATOR_PATIENCE, peek).await?.into_iter();
        Ok(stored
            .map(|stored| OutboxMessage::stored(stored, queue, partition, partition_id))
            .collect())
    }

    /// Stops deliveries of a queue, or of one of its partitions, in every process, after what has been
    /// read: the batch in hand, and with a quick handler those of the next 50 ms. Enqueuing goes on.
    pub async fn pause(&self, queue: &str, partition: Option<u32>) -> Result<(), OutboxError> {
        self.set_paused(queue, partition, true).await
    }

    /// Lets deliveries go on.
    pub async fn resume(&self, queue: &str, partition: Option<u32>) -> Result<(), OutboxError> {
        self.set_paused(queue, partition, false).await?;
        // This process at once; others find it by looking.
        for partition_id in &self.queue(queue)?.partition_ids {
            self.engine.ring(*partition_id);
        }
        Ok(())
    }

    /// Puts the first message of a partition that is not settled into the dead letters, whatever its
    /// handler is doing with it, and answers which it was; `None` when nothing waits. The partition
    /// may be paused, and stays so.
    ///
    /// The lease is taken away from its holder, who then settles nothing. Only a transactional handler
    /// in the middle of its transaction cannot be interrupted: after 5 s that is
    /// [`OutboxError::PartitionBusy`].
    pub async fn skip(
        &self,
        queue: &str,
        partition: u32,
        reason: &str,
    ) -> Result<Option<OutboxMessageId>, OutboxError> {
        Box::pin(self.skip_head(queue, partition, None, reason)).await
    }

    /// Like [`skip`](Self::skip), if this message is the first that is not settled. Whether it was: it may
    /// have been settled since somebody looked.
    pub async fn skip_message(
        &self,
        queue: &str,
        partition: u32,
        message_id: OutboxMessageId,
        reason: &str,
    ) -> Result<bool, OutboxError> {
        let skipped = self.skip_head(queue, partition, Some(message_id), reason);
        Ok(Box::pin(skipped).await?.is_some())
    }

    async fn skip_head(
        &self,
        queue: &str,
        partition: u32,
        only: Option<OutboxMessageId>,
        reason: &str,
    ) -> Result<Option<OutboxMessageId>, OutboxError> {
        let partition_id = self.queue(queue)?.partition_id(partition)?;
        // Each of these is large, and would be moved from one to the next on the stack.
        Box::pin(self.settle_own(partition_id)).await?;
        if let Some(only) = only {
            // Nobody loses a lease over a message that is not the first any more.
            let peek = Box::pin(DB::peek(&self.engine.store, partition_id, None, 1));
            let head = answer_within(OPERATOR_PATIENCE, peek).await?;
            if head.first().is_none_or(|head| head.id != only) {
                return Ok(None);
            }
        }
        let lease = Box::pin(self.seize(queue, partition, partition_id)).await?;
        let skipped = Box::pin(self.bury_head(lease, only, reason)).await;
        let release = DB::release(&self.engine.store, lease);
        if let Err(error) = answer_within(SEIZE, release).await {
            // What was done is done; the lease runs out soon.
            let partition_id = partition_id.0;
            tracing::warn!(partition_id, %error, "a lease could not be released after a skip");
        }
        self.engine.note_settled(partition_id);
        self.engine.note_sequenced(partition_id);
        self.engine.doubt(partition_id);
        skipped
    }

    /// What this process has handled and not written down yet is not the head any more.
    async fn settle_own(&self, partition_id: PartitionId) -> Result<(), OutboxError> {
        let owed = self.engine.desks.get(&partition_id).and_then(|desk| {
            let note = desk.note();
            note.lease.zip(note.owed.clone())
        });
        match owed {
            Some((lease, owed)) => {
                let settled = self.engine.settle_owed(lease, &owed);
                answer_within(SEIZE, settled).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Takes the lease from whoever holds it.
    async fn seize(
        &self,
        queue: &str,
        partition: u32,
        partition_id: PartitionId,
    ) -> Result<Lease, OutboxError> {
        // Not this process's own incarnation: its processor is a holder like any other.
        let operator = Incarnation(format!("operator-{}", uuid::Uuid::now_v7()));
        let store = &self.engine.store;
        let until = Instant::now() + SEIZE;
        loop {
            let lease_millis = millis(SEIZE);
            let claim = DB::claim(
                store,
                partition_id,
                &operator,
                lease_millis,
                Takeover::Force,
            );
            if let Some(claimed) = answer_within(SEIZE, claim).await? {
                return Ok(claimed.lease);
            }
            // A transaction has it.
            if Instant::now() >= until {
                return Err(OutboxError::PartitionBusy {
                    queue: queue.to_owned(),
                    partition,
                });
            }
            tokio::time::sleep(SEIZE_AGAIN).await;
        }
    }

    async fn bury_head(
        &self,
        lease: Lease,
        only: Option<OutboxMessageId>,
        reason: &str,
    ) -> Result<Option<OutboxMessageId>, OutboxError> {
        let store = &self.engine.store;
        let limit = ReadLimit {
            despite_pause: true,
            ..ReadLimit::ONE
        };
        let read = DB::advance_alone(store, lease, None, limit, Commit::Relaxed);
        let head = match answer_within(SEIZE, read).await? {
            Advance::Held(head) => head,
            Advance::Lost => return Err(lost(lease)),
        };
        let first = head.messages.first();
        let Some(first) = first.filter(|first| only.is_none_or(|only| only == first.id)) else {
            return Ok(None);
        };
        let settlement = Settlement {
            cursor: first.seq,
            cursor_id: Some(first.id),
            attempts: 0,
            last_error: None,
            dead_letters: vec![Burial {
                id: first.id,
                seq: first.seq,
                attempts: head.attempts,
                reason: store.habits.writable(storable(reason)),
            }],
        };
        // Again while the lease lasts, for a second call of `skip` would bury the next one. A burial
        // whose reply was lost is made twice, which changes nothing.
        let until = Instant::now() + SEIZE;
        loop {
            let (settled, nothing) = (Some(&settlement), ReadLimit::NOTHING);
            let bury = DB::advance_alone(store, lease, settled, nothing, Commit::Durable);
            match answer_within(SEIZE, bury).await {
                Ok(Advance::Held(_)) => {
                    self.engine.note_buried(lease.partition_id, &settlement);
                    return Ok(Some(first.id));
                }
                Ok(Advance::Lost) => return Err(lost(lease)),
                Err(error) if error.is_retryable() && Instant::now() < until => {
                    tokio::time::sleep(SEIZE_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the outbox usable again after its database was restored from a dump or failed over
    /// logically: until then sequencing refuses with
    /// [`OutboxError::ForeignTransactionIds`](crate::OutboxError::ForeignTransactionIds). Gives every
    /// message that has no number one, in the order of ids, and answers how many. Run it before
    /// producers write to the restored database, or their messages are ordered by id with the old.
    ///
    /// What a dump cannot know: messages settled after it was taken are delivered again.
    pub async fn repair(&self) -> Result<u64, OutboxError> {
        let repaired = DB::repair(&self.engine.store).await?;
        for partition_id in self.engine.partition_ids() {
            self.engine.note_sequenced(partition_id);
        }
        Ok(repaired)
    }

    async fn set_paused(
        &self,
        queue: &str,
        partition: Option<u32>,
        paused: bool,
    ) -> Result<(), OutboxError> {
        let registered = self.queue(queue)?;
        let partition_id = match partition {
            None => None,
            Some(partition) => Some(registered.partition_id(partition)?),
        };
        let pause = DB::pause(&self.engine.store, queue, partition_id, paused);
        answer_within(OPERATOR_PATIENCE, pause).await
    }
}

/// Another operator took the partition from this one.
fn lost(lease: Lease) -> OutboxError {
    OutboxError::LeaseLost {
        partition_id: lease.partition_id.0,
    }
}
