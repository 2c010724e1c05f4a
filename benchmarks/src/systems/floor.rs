//! The floor: the least SQL that could possibly work, by the same driver. One table, a cursor per
//! partition, one consumer per partition; nothing is ever removed, retried or taken over. A system that
//! comes close to it costs nothing.
//!
//! It relies on each partition being fed by one producer at a time: with two, a late commit behind the
//! cursor would be lost.

mod mysql;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bench_contract::{Handler, Message, Sink, Start, System, Task};
use sqlx::Pool;
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub(crate) use mysql::MySql;
pub(crate) use postgres::Postgres;
pub(crate) use sqlite::Sqlite;

use super::pool::Open;

/// How long a consumer that was not woken waits before it looks again.
const IDLE: Duration = Duration::from_millis(500);

/// A message as it is stored.
pub(crate) type Row = (i64, Vec<u8>);

/// The statements of one database.
pub(crate) trait Statements: Send + Sync + 'static {
    /// sqlx's type.
    type DB: Open;
    /// One consumer works through all partitions instead of one per partition: the database has one
    /// writer.
    const ONE_CONSUMER: bool = false;

    fn create(pool: &Pool<Self::DB>, partitions: u16) -> impl Future<Output = Result<()>> + Send;
    fn insert(
        pool: &Pool<Self::DB>,
        messages: &[Message],
        notify: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Moves the cursor to `done` and reads what comes after it.
    fn advance(
        pool: &Pool<Self::DB>,
        partition: i32,
        done: i64,
        batch: i64,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;
    /// Reads the cursor and what comes after it, hands it over, moves the cursor: one transaction.
    fn transact(
        pool: &Pool<Self::DB>,
        partition: i32,
        batch: i64,
        sink: &Sink,
    ) -> impl Future<Output = Result<usize>> + Send;
    /// Returns when another process has committed something.
    fn wait(pool: &Pool<Self::DB>, state: &mut Waiting) -> impl Future<Output = Result<()>> + Send;
}

/// What is remembered between two waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) listener: Option<sqlx::postgres::PgListener>,
    pub(crate) highest: i64,
}

#[derive(Debug)]
pub(crate) struct Floor<S: Statements> {
    pool: Pool<S::DB>,
    bells: Arc<Vec<Notify>>,
    consumers: JoinSet<()>,
    /// The consumers are in another process.
    notify: bool,
}

impl<S: Statements> Floor<S> {
    fn consume(&mut self, task: &Task, partitions: Vec<i32>, sink: &Arc<Sink>) {
        let (pool, bells, sink) = (self.pool.clone(), Arc::clone(&self.bells), Arc::clone(sink));
        let (transactional, batch) = (task.handler == Handler::Transactional, task.floor_batch);
        self.consumers.spawn(async move {
            let mut done = vec![0; partitions.len()];
            let bell = &bells[usize::try_from(partitions[0]).unwrap_or(0)];
            loop {
                let mut full = false;
                for (partition, done) in partitions.iter().zip(&mut done) {
                    let step = if transactional {
                        S::transact(&pool, *partition, batch, &sink).await
                    } else {
                        lease_free::<S>(&pool, *partition, done, batch, &sink).await
                    };
                    match step {
                        Ok(count) => full |= count == usize::try_from(batch).unwrap_or(0),
                        Err(error) => eprintln!("floor: {error:#}"),
                    }
                }
                if !full {
                    tokio::time::timeout(IDLE, bell.notified()).await.ok();
                }
            }
        });
    }
}

async fn lease_free<S: Statements>(
    pool: &Pool<S::DB>,
    partition: i32,
    done: &mut i64,
    batch: i64,
    sink: &Sink,
) -> Result<usize> {
    let rows = S::advance(pool, partition, *done, batch).await?;
    sink.handle(rows.iter().map(|(_, payload)| &payload[..]));
    if let Some((id, _)) = rows.last() {
        *done = *id;
    }
    Ok(rows.len())
}

impl<S: Statements> System for Floor<S> {
    async fn connect(task: &Task) -> Result<Self> {
        Ok(Self {
            pool: S::DB::open(task).await?,
            bells: Arc::new((0..task.partitions).map(|_| Notify::new()).collect()),
            consumers: JoinSet::new(),
            notify: task.background,
        })
    }

    async fn prepare(&mut self, task: &Task) -> Result<()> {
        S::create(&self.pool, task.partitions).await
    }

    async fn start(&mut self, task: &Task, start: Start) -> Result<()> {
        let Start::Handlers(sink) = start else {
            return Ok(());
        };
        let (own, of) = task.share;
        let mine = (0..task.partitions).filter(|partition| partition % of == own);
        let mine: Vec<i32> = mine.map(i32::from).collect();
        if S::ONE_CONSUMER {
            self.consume(task, mine, &sink);
        } else {
            for partition in mine {
                self.consume(task, vec![partition], &sink);
            }
        }
        if task.production.is_none() {
            let (pool, bells) = (self.pool.clone(), Arc::clone(&self.bells));
            self.consumers.spawn(async move {
                let mut state = Waiting::default();
                loop {
                    if let Err(error) = S::wait(&pool, &mut state).await {
                        eprintln!("floor: {error:#}");
                    }
                    bells.iter().for_each(Notify::notify_one);
                }
            });
        }
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        S::insert(&self.pool, &messages, self.notify).await?;
        if S::ONE_CONSUMER {
            self.bells[0].notify_one();
        } else {
            for message in &messages {
                self.bells[message.partition as usize].notify_one();
            }
        }
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        self.consumers.shutdown().await;
        self.pool.close().await;
        Ok(())
    }
}
