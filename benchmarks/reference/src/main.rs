//! The reference, cf-modkit-db's outbox, as the benchmark measures it: through its public API alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_trait::async_trait;
use bench_contract::{Database, Handler, Message, Sink, Start, System, Task};
use modkit_db::config::{DbConnConfig, PoolCfg};
use modkit_db::migration_runner::run_migrations_for_testing;
use modkit_db::outbox::{
    Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxHandle, OutboxMessage,
    OutboxProfile, Partitions, TransactionalHandler, outbox_migrations,
};
use modkit_db::{Db, DbTx, build_db};
use sea_orm::ConnectionTrait;

const QUEUE: &str = "bench";
const PAYLOAD_TYPE: &str = "bench.message";

/// Notes what it is given.
struct Noting(Arc<Sink>);

#[async_trait]
impl LeasedHandler for Noting {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(batch.len());
        self.0
            .handle(messages.iter().map(|message| &message.payload[..]));
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        batch.ack_chunk(count);
        HandlerResult::Success
    }
}

#[async_trait]
impl TransactionalHandler for Noting {
    async fn handle(&self, _: &dyn ConnectionTrait, messages: &[OutboxMessage]) -> HandlerResult {
        self.0
            .handle(messages.iter().map(|message| &message.payload[..]));
        HandlerResult::Success
    }
}

struct Reference {
    db: Db,
    outbox: Option<Arc<Outbox>>,
    handle: Option<OutboxHandle>,
}

/// The same durability for everyone; the server databases have it from their servers.
fn parameters(database: Database) -> Option<HashMap<String, String>> {
    let pairs = [
        ("synchronous", "FULL"),
        ("journal_mode", "WAL"),
        ("busy_timeout", "10000"),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    (database == Database::Sqlite).then(|| pairs.into())
}

impl System for Reference {
    async fn connect(task: &Task) -> Result<Self> {
        let pool = PoolCfg {
            max_conns: Some(task.pool),
            min_conns: Some(task.pool),
            acquire_timeout: Some(Duration::from_secs(60)),
            test_before_acquire: Some(false),
            ..PoolCfg::default()
        };
        let config = DbConnConfig {
            dsn: Some(task.url.clone()),
            params: parameters(task.database),
            pool: Some(pool),
            ..DbConnConfig::default()
        };
        Ok(Self {
            db: build_db(config, None).await?,
            outbox: None,
            handle: None,
        })
    }

    async fn prepare(&mut self, task: &Task) -> Result<()> {
        run_migrations_for_testing(&self.db, outbox_migrations()).await?;
        self.start(task, Start::Nothing).await
    }

    async fn start(&mut self, task: &Task, start: Start) -> Result<()> {
        let profile = if task.low_latency {
            OutboxProfile::low_latency()
        } else {
            OutboxProfile::high_throughput()
        };
        let builder = Outbox::builder(self.db.clone())
            .profile(profile)
            .processors(usize::from(task.partitions))
            .stats_interval(Duration::ZERO);
        let idle = matches!(start, Start::Nothing);
        let partitions = Partitions::of(task.partitions);
        let handle = match start {
            // It has no queue without a handler: the queue is registered by itself below.
            Start::Nothing | Start::Background => builder.start().await,
            Start::Handlers(sink) if task.handler == Handler::Transactional => {
                let queue = builder.queue(QUEUE, partitions);
                queue.batch_transactional(Noting(sink)).start().await
            }
            Start::Handlers(sink) => {
                builder
                    .queue(QUEUE, partitions)
                    .leased(Noting(sink))
                    .start()
                    .await
            }
        }?;
        let outbox = Arc::clone(handle.outbox());
        if task.handler == Handler::None {
            outbox
                .register_queue(&self.db, QUEUE, task.partitions)
                .await?;
        }
        self.outbox = Some(outbox);
        if idle {
            // Producing goes on without the workers of this process.
            handle.stop().await;
        } else {
            self.handle = Some(handle);
        }
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let outbox = Arc::clone(self.outbox.as_ref().context("started")?);
        let inner = Arc::clone(&outbox);
        let (_, result) = outbox
            .transaction(self.db.clone(), |transaction| {
                Box::pin(async move { enqueue(&inner, transaction, messages).await })
            })
            .await;
        result
    }

    async fn stop(self) -> Result<()> {
        if let Some(handle) = self.handle {
            handle.stop().await;
        }
        Ok(())
    }
}

async fn enqueue(outbox: &Outbox, transaction: &DbTx<'_>, messages: Vec<Message>) -> Result<()> {
    let mut messages: Vec<_> = messages
        .into_iter()
        .map(|message| EnqueueMessage {
            partition: message.partition,
            payload: message.payload,
            payload_type: PAYLOAD_TYPE,
        })
        .collect();
    let enqueued = match (messages.pop(), messages.is_empty()) {
        (Some(one), true) => {
            let (partition, payload) = (one.partition, one.payload);
            let enqueue = outbox.enqueue(transaction, QUEUE, partition, payload, PAYLOAD_TYPE);
            enqueue.await.map(drop)
        }
        (last, _) => {
            messages.extend(last);
            outbox
                .enqueue_batch(transaction, QUEUE, &messages)
                .await
                .map(drop)
        }
    };
    enqueued.map_err(|error| anyhow!("{error}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let task = std::env::args().nth(2).context("a task")?;
    bench_contract::main::<Reference>(&task).await
}
