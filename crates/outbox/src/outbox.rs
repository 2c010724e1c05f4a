//! The producer's side: enqueue in a transaction of one's own, and wake the pipeline after it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::backend::{Addressed, Backend, OwnConnection, PartitionId};
use crate::builder::OutboxBuilder;
use crate::engine::{Engine, Queue, lock};
use crate::error::OutboxError;
use crate::message::{EnqueueMessage, OutboxMessageId};
use crate::trace::Origin;
use crate::unannounced::ConnectionId;

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
        let message = match Origin::current() {
            Some(origin) => origin.stamp(message),
            None => message,
        };
        let ids = self
            .write(connection, queue, std::slice::from_ref(&message))
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
        match Origin::current() {
            None => self.write(connection, queue, messages).await,
            Some(origin) => {
                let traced = messages.iter().cloned();
                let traced: Vec<_> = traced.map(|message| origin.stamp(message)).collect();
                self.write(connection, queue, &traced).await
            }
        }
    }

    async fn write(
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
        queue.meters.enqueued.increment(ids.len() as u64);
        let partitions = addressed.iter().map(|(partition_id, _)| *partition_id);
        self.engine
            .note_enqueued(ConnectionId::of(connection), partitions);
        Ok(ids)
    }

    /// Says that what this task enqueued is committed: the pipeline looks at once. From a task that has
    /// enqueued nothing, that what others enqueued may be.
    pub fn flush(&self) {
        let committed = lock(&self.engine.unannounced).flush();
        self.engine.mark(committed);
    }

    /// Runs `work` on a connection inside a transaction, commits if it answers `Ok`, rolls back if not,
    /// and wakes the pipeline at once.
    ///
    /// On PostgreSQL a statement that fails undoes the whole transaction, whatever comes after it, and COMMIT then
    /// rolls back without an error: `work` should answer with the error, or run what may fail in a savepoint.
    ///
    /// A transaction that follows another closely gets its connection without a detour by the pool, and
    /// so without the pool's `after_release` and `before_acquire`: what `work` changes in its session,
    /// it should change for the transaction only, with `SET LOCAL`.
    pub async fn transaction<T, E>(
        &self,
        work: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<OutboxError>,
    {
        let mut connection = OwnConnection::begin(&self.engine.store.producers).await?;
        let announcement = Announcement::begin(&self.engine, &connection);
        let answer = work(&mut connection).await?;
        #[cfg(mutants)]
        if crate::mutants::Mutant::SignalBeforeCommit.is_alive() {
            self.engine.mark(announcement.end());
        }
        match connection.commit().await {
            Ok(()) => announcement.committed(),
            Err(error) => {
                announcement.unknown();
                return Err(error.into());
            }
        }
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

/// What a transaction has to announce. Nothing if it is dropped: then it was rolled back.
struct Announcement<'a, DB: Backend> {
    engine: &'a Engine<DB>,
    connection: ConnectionId,
}

impl<'a, DB: Backend> Announcement<'a, DB> {
    fn begin(engine: &'a Engine<DB>, connection: &DB::Connection) -> Self {
        let connection = ConnectionId::of(connection);
        lock(&engine.unannounced).begin(connection);
        Self { engine, connection }
    }

    fn end(&self) -> HashSet<PartitionId> {
        lock(&self.engine.unannounced).end(self.connection)
    }

    fn committed(self) {
        self.engine.mark(self.end());
    }

    /// The commit's reply was lost: it may have been done.
    fn unknown(self) {
        self.engine.look_for(self.end());
    }
}

impl<DB: Backend> Drop for Announcement<'_, DB> {
    fn drop(&mut self) {
        self.end();
    }
}
