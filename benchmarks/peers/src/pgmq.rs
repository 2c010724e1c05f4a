//! pgmq: visibility timeouts, deletion on ack, JSON bodies. No order between consumers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bench_contract::{Message, Sink, Start, System, Task};
use pgmq::PGMQueueExt;
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::pool::{open, text};

const QUEUE: &str = "bench";
const BATCH: i32 = 500;
/// More consumers than this only fight for the same rows.
const CONSUMERS: u16 = 4;
const VISIBILITY_SECONDS: i32 = 30;

pub(crate) struct Pgmq {
    pool: PgPool,
    queue: PGMQueueExt,
    consumers: JoinSet<()>,
}

impl System for Pgmq {
    async fn connect(task: &Task) -> Result<Self> {
        let pool = open(task).await?;
        Ok(Self {
            queue: PGMQueueExt::new_with_pool(pool.clone()).await,
            pool,
            consumers: JoinSet::new(),
        })
    }

    async fn prepare(&mut self, _: &Task) -> Result<()> {
        self.queue.install_sql_from_embedded().await?;
        Ok(self.queue.create(QUEUE).await?)
    }

    async fn start(&mut self, task: &Task, start: Start) -> Result<()> {
        let Start::Handlers(sink) = start else {
            return Ok(());
        };
        let pause = Duration::from_millis(if task.low_latency { 2 } else { 20 });
        for _ in 0..CONSUMERS {
            let pool = self.pool.clone();
            let sink = Arc::clone(&sink);
            self.consumers.spawn(async move {
                let queue = PGMQueueExt::new_with_pool(pool).await;
                loop {
                    match consume(&queue, &sink).await {
                        Ok(0) => tokio::time::sleep(pause).await,
                        Ok(_) => {}
                        Err(error) => eprintln!("pgmq: {error:#}"),
                    }
                }
            });
        }
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let bodies: Vec<String> = messages.iter().map(text).collect();
        let mut transaction = self.pool.begin().await?;
        if let [body] = &bodies[..] {
            self.queue
                .send_with_cxn(QUEUE, body, &mut *transaction)
                .await?;
        } else {
            self.queue
                .send_batch_with_cxn(QUEUE, &bodies, &mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn stop(mut self) -> Result<()> {
        self.consumers.shutdown().await;
        Ok(())
    }
}

async fn consume(queue: &PGMQueueExt, sink: &Sink) -> Result<usize> {
    let batch = queue
        .read_batch::<String, ()>(QUEUE, VISIBILITY_SECONDS, BATCH)
        .await?;
    if batch.is_empty() {
        return Ok(0);
    }
    sink.handle(batch.iter().map(|message| message.message.as_bytes()));
    let ids: Vec<i64> = batch.iter().map(|message| message.msg_id).collect();
    queue.delete_batch(QUEUE, &ids).await?;
    Ok(batch.len())
}
