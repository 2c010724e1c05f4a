//! This repository's outbox, used as its documentation tells users to.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use bench_contract::{Handler, Message, Sink, Start, System, Task};
use outbox::{
    Backend, Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxError,
    OutboxHandle, OutboxMessage, OutboxProfile, Partitions, TransactionalHandler,
};
use sqlx::Pool;

use super::pool::Open;

const QUEUE: &str = "bench";

/// Notes what it is given.
struct Noting(Arc<Sink>);

impl LeasedHandler for Noting {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(batch.len());
        self.0
            .handle(messages.iter().map(|message| &message.payload[..]));
        batch.ack_chunk(messages);
        HandlerResult::Success
    }
}

impl<DB: Backend> TransactionalHandler<DB> for Noting {
    async fn handle(&self, _: &mut DB::Connection, messages: &[OutboxMessage]) -> HandlerResult {
        self.0
            .handle(messages.iter().map(|message| &message.payload[..]));
        HandlerResult::Success
    }
}

#[derive(Debug)]
pub(crate) struct Ours<DB: Backend> {
    pool: Pool<DB>,
    outbox: Option<Outbox<DB>>,
    handle: Option<OutboxHandle<DB>>,
}

impl<DB: Backend + Open> Ours<DB> {
    async fn build(&self, task: &Task, start: Start) -> Result<OutboxHandle<DB>, OutboxError> {
        let profile = if task.low_latency {
            OutboxProfile::low_latency()
        } else {
            OutboxProfile::high_throughput()
        };
        let partitions = Partitions::try_from(task.partitions)?;
        let queue = Outbox::builder(self.pool.clone())
            .profile(profile)
            .auto_migrate()
            .queue(QUEUE, partitions);
        let builder = match start {
            Start::Nothing | Start::Background => queue.produce_only(),
            Start::Handlers(sink) if task.handler == Handler::Transactional => {
                queue.batch_transactional(Noting(sink))
            }
            Start::Handlers(sink) => queue.batch_leased(Noting(sink)),
        };
        builder.start().await
    }
}

impl<DB: Backend + Open> System for Ours<DB>
where
    DB::Connection: Send,
{
    async fn connect(task: &Task) -> Result<Self> {
        Ok(Self {
            pool: DB::open(task).await?,
            outbox: None,
            handle: None,
        })
    }

    async fn prepare(&mut self, task: &Task) -> Result<()> {
        self.build(task, Start::Nothing).await?.stop().await;
        Ok(())
    }

    async fn start(&mut self, task: &Task, start: Start) -> Result<()> {
        let idle = matches!(start, Start::Nothing);
        let handle = self.build(task, start).await?;
        self.outbox = Some(handle.outbox().clone());
        if idle {
            // Producing goes on without the workers of this process.
            handle.stop().await;
        } else {
            self.handle = Some(handle);
        }
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let outbox = self.outbox.as_ref().context("started")?;
        let messages: Vec<_> = messages
            .into_iter()
            .map(|message| EnqueueMessage::to(message.partition, message.payload, "bench.message"))
            .collect();
        outbox
            .transaction(async |connection| {
                outbox.enqueue_batch(connection, QUEUE, &messages).await
            })
            .await?;
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        if let Some(handle) = self.handle {
            handle.stop().await;
        }
        self.pool.close().await;
        Ok(())
    }
}
