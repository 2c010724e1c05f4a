//! The floor on SQLite. It has one writer, so there is one consumer, which works through all partitions
//! in turn. What another process committed is found by looking every 2 ms.

use std::time::Duration;

use anyhow::Result;
use bench_contract::{Message, Sink};
use sqlx::{QueryBuilder, Row as _, SqlitePool};

use super::{Row, Statements, Waiting};

#[derive(Debug)]
pub(crate) struct Sqlite;

const READ: &str = "SELECT id, payload FROM floor_messages
                    WHERE partition = ? AND id > ? ORDER BY id LIMIT ?";
const MOVE: &str = "UPDATE floor_cursors SET position = ? WHERE partition = ?";

impl Statements for Sqlite {
    type DB = sqlx::Sqlite;
    const ONE_CONSUMER: bool = true;

    async fn create(pool: &SqlitePool, partitions: u16) -> Result<()> {
        sqlx::raw_sql(
            "CREATE TABLE floor_messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
                 partition INTEGER NOT NULL, payload BLOB NOT NULL);
             CREATE INDEX floor_by_partition ON floor_messages (partition);
             CREATE TABLE floor_cursors (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL)",
        )
        .execute(pool)
        .await?;
        for partition in 0..partitions {
            sqlx::query("INSERT INTO floor_cursors VALUES (?, 0)")
                .bind(partition)
                .execute(pool)
                .await?;
        }
        Ok(())
    }

    async fn insert(pool: &SqlitePool, messages: &[Message], _: bool) -> Result<()> {
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
        let mut insert = QueryBuilder::new("INSERT INTO floor_messages (partition, payload) ");
        insert.push_values(messages, |mut row, message| {
            row.push_bind(message.partition)
                .push_bind(&message.payload[..]);
        });
        insert.build().execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn advance(pool: &SqlitePool, partition: i32, done: i64, batch: i64) -> Result<Vec<Row>> {
        let read = sqlx::query(READ).bind(partition).bind(done).bind(batch);
        let rows = read.fetch_all(pool).await?;
        // The handler runs after this, so what is written down is where it is about to be; a floor may
        // lose a batch in a crash.
        if let Some(last) = rows.last() {
            let last: i64 = last.get(0);
            sqlx::query(MOVE)
                .bind(last)
                .bind(partition)
                .execute(pool)
                .await?;
        }
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn transact(pool: &SqlitePool, partition: i32, batch: i64, sink: &Sink) -> Result<usize> {
        let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
        let cursor = sqlx::query("SELECT position FROM floor_cursors WHERE partition = ?");
        let position: i64 = cursor
            .bind(partition)
            .fetch_one(&mut *transaction)
            .await?
            .get(0);
        let read = sqlx::query(READ).bind(partition).bind(position).bind(batch);
        let rows = read.fetch_all(&mut *transaction).await?;
        sink.handle(rows.iter().map(|row| row.get::<&[u8], _>(1)));
        if let Some(last) = rows.last() {
            let last: i64 = last.get(0);
            sqlx::query(MOVE)
                .bind(last)
                .bind(partition)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(rows.len())
    }

    async fn wait(pool: &SqlitePool, state: &mut Waiting) -> Result<()> {
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let highest = sqlx::query("SELECT COALESCE(MAX(id), 0) FROM floor_messages");
            let highest: i64 = highest.fetch_one(pool).await?.get(0);
            if std::mem::replace(&mut state.highest, highest) != highest {
                return Ok(());
            }
        }
    }
}
