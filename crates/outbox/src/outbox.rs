//! The producer's side: enqueue in a transaction of one's own, and wake the pipeline after it.

use std::sync::Arc;

use crate::backend::{Addressed, Backend, PartitionId};
use crate::builder::OutboxBuilder;
use crate::engine::{Engine, Queue, lock};
use crate::error::OutboxError;
use crate::message::{EnqueueMessage, OutboxMessageId};

/// A transactional outbox in the database `DB`. Cheap to clone.
#[derive(Debug)]
pub struct Outbox<DB: Backend> {
    pub(crate) engine: Arc<Engine<DB>>,
}

impl<DB: Backend> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
        }
    }
}

impl<DB: Backend> Outbox<DB> {
    /// Begins the configuration of an outbox that uses this pool.
    pub fn builder(pool: sqlx::Pool<DB>) -> OutboxBuilder<DB> {
        OutboxBuilder::new(pool)
    }

    /// Writes a message in the caller's transaction: it exists if and only if that commits.
    pub async fn enqueue(
        &self,
        connection: &mut DB::Connection,
        queue: &str,
        message: EnqueueMessage,
    ) -> Result<OutboxMessageId, OutboxError> {
        let ids = self
            .enqueue_batch(connection, queue, std::slice::from_ref(&message))
            .await?;
        ids.first()
            .copied()
            .ok_or_else(|| sqlx::Error::RowNotFound.into())
    }

    /// Writes messages in the caller's transaction, in this order and in one statement. All are
    /// checked before anything is written.
    pub async fn enqueue_batch(
        &self,
        connection: &mut DB::Connection,
        queue: &str,
        messages: &[EnqueueMessage],
    ) -> Result<Vec<OutboxMessageId>, OutboxError> {
        let queue = self.queue(queue)?;
        let max = self.engine.max_payload;
        let addressed = messages
            .iter()
            .map(|message| {
                let partition = message.validate(&queue.name, queue.partitions, max)?;
                Ok((queue.partition_ids[partition as usize], message))
            })
            .collect::<Result<Vec<Addressed<'_>>, OutboxError>>()?;
        if addressed.is_empty() {
            return Ok(Vec::new());
        }
        let ids = DB::enqueue(&self.engine.store.sql, connection, &addressed).await?;
        // Unless `flush` follows nobody will say when this commits: look for it soon, and again.
        self.engine
            .note_enqueued(addressed.iter().map(|(partition_id, _)| *partition_id));
        Ok(ids)
    }

    /// Says that what was enqueued here is committed: the pipeline looks at once.
    pub fn flush(&self) {
        let enqueued = std::mem::take(&mut *lock(&self.engine.enqueued));
        self.engine.mark(enqueued);
    }

    /// Runs `work` on a connection inside a transaction, commits if it answers `Ok`, rolls back if not,
    /// and wakes the pipeline at once.
    pub async fn transaction<T, E>(
        &self,
        work: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<OutboxError>,
    {
        let pool = self.engine.store.pool.clone();
        // To completion, whatever happens to the caller: a `begin` that is dropped half-way can give
        // a connection back to the pool inside an open transaction.
        let begin = tokio::spawn(async move { pool.begin_with(DB::BEGIN).await });
        let mut transaction = begin
            .await
            .unwrap_or(Err(sqlx::Error::PoolClosed))
            .map_err(OutboxError::from)?;
        let answer = work(&mut transaction).await?;
        transaction.commit().await.map_err(OutboxError::from)?;
        self.flush();
        Ok(answer)
    }

    pub(crate) fn queue(&self, name: &str) -> Result<&Arc<Queue<DB>>, OutboxError> {
        let queue = self.engine.queues.get(name);
        queue.ok_or_else(|| OutboxError::QueueNotRegistered(name.to_owned()))
    }

    /// The database's numbers of a queue's partitions, in order.
    pub fn partition_ids(&self, queue: &str) -> Result<Vec<i64>, OutboxError> {
        let number = |id: &PartitionId| id.0;
        Ok(self
            .queue(queue)?
            .partition_ids
            .iter()
            .map(number)
            .collect())
    }
}
