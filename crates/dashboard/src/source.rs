//! The outbox as the dashboard sees it, whatever its database.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use outbox::{
    AuditEntry, Backend, DeadLetter, DeadLetterFilter, Finding, Outbox, OutboxError, OutboxMessage,
    OutboxMessageId, PartitionStats, Partitions, ProcessStats,
};

/// How long a dead letter is claimed for while it is resolved.
const CLAIM: Duration = Duration::from_secs(30);

pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, OutboxError>>;

/// What a dashboard asks of an outbox, and does to it.
pub(crate) trait Source: Send + Sync {
    fn queues(&self) -> Vec<(String, Partitions)>;
    /// The same with queues that were made meanwhile, if there are any.
    fn renewed(&self) -> Answer<'_, Option<Arc<dyn Source>>>;
    fn stats(&self) -> Answer<'_, Vec<PartitionStats>>;
    fn processes(&self) -> Answer<'_, Vec<ProcessStats>>;
    fn storage(&self) -> Answer<'_, u64>;
    fn health(&self) -> Answer<'_, Vec<Finding>>;
    fn peek<'a>(
        &'a self,
        queue: &'a str,
        partition: u32,
        from: Option<i64>,
        limit: u32,
    ) -> Answer<'a, Vec<OutboxMessage>>;
    fn set_paused<'a>(
        &'a self,
        queue: &'a str,
        partition: Option<u32>,
        paused: bool,
    ) -> Answer<'a, ()>;
    fn skip<'a>(
        &'a self,
        queue: &'a str,
        partition: u32,
        message: OutboxMessageId,
        reason: &'a str,
    ) -> Answer<'a, bool>;
    fn dead_letters<'a>(&'a self, filter: &'a DeadLetterFilter) -> Answer<'a, Vec<DeadLetter>>;
    fn requeue(&self, id: i64) -> Answer<'_, ()>;
    /// Whether it was there to be resolved.
    fn resolve(&self, id: i64) -> Answer<'_, bool>;
    /// How many were there to be discarded.
    fn discard<'a>(&'a self, letters: &'a [DeadLetter]) -> Answer<'a, u64>;
    fn audit<'a>(
        &'a self,
        actor: &'a str,
        action: &'static str,
        target: &'a str,
        reason: &'a str,
    ) -> Answer<'a, ()>;
    fn audit_log(&self, before: Option<i64>, limit: u32) -> Answer<'_, Vec<AuditEntry>>;
}

/// Dead letters without their payloads, page by page, the newest first.
pub(crate) struct DeadLetterPages {
    filter: DeadLetterFilter,
    ids: RangeInclusive<i64>,
}

impl DeadLetterPages {
    /// Those of these numbers that a filter lets through.
    pub(crate) fn new(filter: DeadLetterFilter, ids: RangeInclusive<i64>, page: u32) -> Self {
        let filter = filter.without_payloads().limit(page);
        Self { filter, ids }
    }

    /// The next page; `None` when there are no more.
    pub(crate) async fn next(
        &mut self,
        source: &dyn Source,
    ) -> Result<Option<Vec<DeadLetter>>, OutboxError> {
        let filter = self.filter.clone().ids(self.ids.clone());
        let page = source.dead_letters(&filter).await?;
        let Some(oldest) = page.last() else {
            return Ok(None);
        };
        self.ids = *self.ids.start()..=oldest.id - 1;
        Ok(Some(page))
    }
}

impl<DB: Backend> Source for Outbox<DB> {
    fn queues(&self) -> Vec<(String, Partitions)> {
        let queues = Outbox::queues(self).into_iter();
        queues
            .map(|(name, partitions)| (name.to_string(), partitions))
            .collect()
    }

    fn renewed(&self) -> Answer<'_, Option<Arc<dyn Source>>> {
        async move {
            if self.all_queues().await? == Outbox::queues(self) {
                return Ok(None);
            }
            let renewed: Arc<dyn Source> = Arc::new(self.with_all_queues().await?);
            Ok(Some(renewed))
        }
        .boxed()
    }

    fn stats(&self) -> Answer<'_, Vec<PartitionStats>> {
        Outbox::stats(self).boxed()
    }

    fn processes(&self) -> Answer<'_, Vec<ProcessStats>> {
        Outbox::processes(self).boxed()
    }

    fn storage(&self) -> Answer<'_, u64> {
        Outbox::storage(self).boxed()
    }

    fn health(&self) -> Answer<'_, Vec<Finding>> {
        Outbox::health(self).boxed()
    }

    fn peek<'a>(
        &'a self,
        queue: &'a str,
        partition: u32,
        from: Option<i64>,
        limit: u32,
    ) -> Answer<'a, Vec<OutboxMessage>> {
        Outbox::peek(self, queue, partition, from, limit).boxed()
    }

    fn set_paused<'a>(
        &'a self,
        queue: &'a str,
        partition: Option<u32>,
        paused: bool,
    ) -> Answer<'a, ()> {
        if paused {
            self.pause(queue, partition).boxed()
        } else {
            self.resume(queue, partition).boxed()
        }
    }

    fn skip<'a>(
        &'a self,
        queue: &'a str,
        partition: u32,
        message: OutboxMessageId,
        reason: &'a str,
    ) -> Answer<'a, bool> {
        self.skip_message(queue, partition, message, reason).boxed()
    }

    fn dead_letters<'a>(&'a self, filter: &'a DeadLetterFilter) -> Answer<'a, Vec<DeadLetter>> {
        self.dead_letter_list(filter).boxed()
    }

    fn requeue(&self, id: i64) -> Answer<'_, ()> {
        async move { self.dead_letter_requeue(id).await.map(drop) }.boxed()
    }

    fn resolve(&self, id: i64) -> Answer<'_, bool> {
        async move {
            let one = DeadLetterFilter::new().ids(id..=id);
            let claimed = self.dead_letter_replay(&one, CLAIM).await?;
            Ok(self.dead_letter_resolve(&claimed).await? > 0)
        }
        .boxed()
    }

    fn discard<'a>(&'a self, letters: &'a [DeadLetter]) -> Answer<'a, u64> {
        self.dead_letter_discard(letters).boxed()
    }

    fn audit<'a>(
        &'a self,
        actor: &'a str,
        action: &'static str,
        target: &'a str,
        reason: &'a str,
    ) -> Answer<'a, ()> {
        Outbox::audit(self, actor, action, target, reason).boxed()
    }

    fn audit_log(&self, before: Option<i64>, limit: u32) -> Answer<'_, Vec<AuditEntry>> {
        Outbox::audit_log(self, before, limit).boxed()
    }
}
