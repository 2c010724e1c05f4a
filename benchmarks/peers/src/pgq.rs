//! PgQ, as Debian packages it: batches between ticks, rotated tables, one consumer in order of snapshots.
//! No partitions, no acks of single messages, and a batch waits for its tick.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bench_contract::{Message, Sink, Start, System, Task};
use sqlx::{PgPool, Row as _};
use tokio::task::JoinSet;

use crate::pool::{open, text};

/// How often somebody calls the ticker; its daemon does so once a second, which is no latency at all.
const TICK: Duration = Duration::from_millis(10);
const SET_UP: &str = "
CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench');
SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '10 milliseconds');
SELECT pgq.set_queue_config('bench', 'ticker_max_count', '5000');
SELECT pgq.register_consumer('bench', 'handler');";

pub(crate) struct Pgq {
    pool: PgPool,
    workers: JoinSet<()>,
}

impl System for Pgq {
    async fn connect(task: &Task) -> Result<Self> {
        Ok(Self {
            pool: open(task).await?,
            workers: JoinSet::new(),
        })
    }

    async fn prepare(&mut self, _: &Task) -> Result<()> {
        let set_up = sqlx::raw_sql(SET_UP).execute(&self.pool).await;
        set_up.context("needs the package postgresql-15-pgq3 where the server is")?;
        Ok(())
    }

    async fn start(&mut self, _: &Task, start: Start) -> Result<()> {
        let Start::Handlers(sink) = start else {
            return Ok(());
        };
        let pool = self.pool.clone();
        self.workers.spawn(async move {
            loop {
                let tick = sqlx::query("SELECT pgq.ticker('bench')").execute(&pool);
                if let Err(error) = tick.await {
                    eprintln!("pgq: {error:#}");
                }
                tokio::time::sleep(TICK).await;
            }
        });
        let pool = self.pool.clone();
        self.workers.spawn(async move {
            loop {
                match consume(&pool, &sink).await {
                    Ok(true) => {}
                    Ok(false) => tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(error) => eprintln!("pgq: {error:#}"),
                }
            }
        });
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let bodies: Vec<String> = messages.iter().map(text).collect();
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "SELECT pgq.insert_event('bench', 'message', body) FROM UNNEST($1::text[]) AS body",
        )
        .bind(bodies)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    async fn stop(mut self) -> Result<()> {
        self.workers.shutdown().await;
        Ok(())
    }
}

/// Works off the next batch, if there is one.
async fn consume(pool: &PgPool, sink: &Arc<Sink>) -> Result<bool> {
    let next = sqlx::query("SELECT pgq.next_batch('bench', 'handler')")
        .fetch_one(pool)
        .await?;
    let Some(batch) = next.get::<Option<i64>, _>(0) else {
        return Ok(false);
    };
    let events = sqlx::query("SELECT ev_data FROM pgq.get_batch_events($1)").bind(batch);
    let events = events.fetch_all(pool).await?;
    sink.handle(
        events
            .iter()
            .map(|event| event.get::<&str, _>(0).as_bytes()),
    );
    sqlx::query("SELECT pgq.finish_batch($1)")
        .bind(batch)
        .execute(pool)
        .await?;
    Ok(true)
}
