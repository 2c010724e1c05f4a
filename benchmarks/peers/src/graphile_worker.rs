//! graphile_worker: a job per message, deleted when done. Without named queues, as here, no order; with
//! them one job at a time per queue.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, anyhow};
use bench_contract::{Message, Sink, Start, System, Task};
use graphile_worker::{
    IntoTaskHandlerResult, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::pool::{open, text};

static SINK: OnceLock<Arc<Sink>> = OnceLock::new();

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    body: String,
}

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(sink) = SINK.get() {
            sink.handle([self.body.as_bytes()]);
        }
        Ok::<(), String>(())
    }
}

pub(crate) struct GraphileWorker {
    pool: PgPool,
    worker: Option<Arc<Worker>>,
    running: Option<JoinHandle<()>>,
}

impl GraphileWorker {
    async fn worker(&self, low_latency: bool) -> Result<Worker> {
        let options = WorkerOptions::default()
            .concurrency(16)
            .schema("graphile_worker")
            .pg_pool(self.pool.clone())
            .listen_os_shutdown_signals(false)
            .define_job::<Job>();
        // Batches of fetched jobs and of completions are its way to throughput.
        let options = if low_latency {
            options
        } else {
            options
                .local_queue(LocalQueueConfig::default().with_size(500))
                .complete_job_batch_delay(Duration::from_millis(5))
        };
        options.init().await.map_err(|error| anyhow!("{error}"))
    }
}

impl System for GraphileWorker {
    async fn connect(task: &Task) -> Result<Self> {
        Ok(Self {
            pool: open(task).await?,
            worker: None,
            running: None,
        })
    }

    async fn prepare(&mut self, task: &Task) -> Result<()> {
        self.worker(task.low_latency).await.map(drop)
    }

    async fn start(&mut self, task: &Task, start: Start) -> Result<()> {
        let Start::Handlers(sink) = start else {
            return Ok(());
        };
        SINK.set(sink).map_err(|_| anyhow!("started twice"))?;
        let worker = Arc::new(self.worker(task.low_latency).await?);
        self.worker = Some(Arc::clone(&worker));
        self.running = Some(tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("graphile_worker: {error}");
            }
        }));
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let jobs: Vec<_> = messages
            .iter()
            .map(|message| {
                sqlx::types::Json(Job {
                    body: text(message),
                })
            })
            .collect();
        let mut transaction = self.pool.begin().await?;
        if let [job] = &jobs[..] {
            let add = sqlx::query("SELECT graphile_worker.add_job('bench', $1::json)").bind(job);
            add.execute(&mut *transaction).await?;
        } else {
            let add = "SELECT graphile_worker.add_jobs(ARRAY(
                           SELECT ('bench', job, NULL, NULL, NULL, NULL, NULL, NULL)
                                  ::graphile_worker.job_spec
                           FROM UNNEST($1::json[]) AS job))";
            sqlx::query(add)
                .bind(jobs)
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn stop(self) -> Result<()> {
        if let Some(worker) = &self.worker {
            worker.request_shutdown();
        }
        if let Some(running) = self.running {
            running.await?;
        }
        Ok(())
    }
}
