//! What an operator does to a running outbox: pause, resume, repair. Dead letters have a file of their
//! own.

use crate::backend::Backend;
use crate::error::OutboxError;
use crate::outbox::Outbox;

/// Pausing, and repair.
impl<DB: Backend> Outbox<DB> {
    /// Stops deliveries of a queue, or of one of its partitions, in every process, after the batch
    /// in hand. Enqueuing goes on.
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
            Some(partition) => {
                let id = registered.partition_ids.get(partition as usize).copied();
                Some(id.ok_or_else(|| OutboxError::PartitionOutOfRange {
                    queue: queue.to_owned(),
                    partition,
                    max: u32::from(registered.partitions.count()) - 1,
                })?)
            }
        };
        DB::pause(&self.engine.store, queue, partition_id, paused).await
    }
}
