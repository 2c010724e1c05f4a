//! The floor on MySQL and MariaDB. What another process committed is found by looking every 2 ms.

use std::time::Duration;

use anyhow::Result;
use bench_contract::{Message, Sink};
use sqlx::{MySqlPool, QueryBuilder, Row as _};

use super::{Row, Statements, Waiting};

#[derive(Debug)]
pub(crate) struct MySql;

const READ: &str = "SELECT id, payload FROM floor_messages
                    WHERE partition_index = ? AND id > ? ORDER BY id LIMIT ?";
const MOVE: &str = "UPDATE floor_cursors SET position = ? WHERE partition_index = ?";

impl Statements for MySql {
    type DB = sqlx::MySql;

    async fn create(pool: &MySqlPool, partitions: u16) -> Result<()> {
        sqlx::raw_sql(
            "CREATE TABLE floor_messages (id BIGINT AUTO_INCREMENT PRIMARY KEY,
                 partition_index INTEGER NOT NULL, payload MEDIUMBLOB NOT NULL, KEY (partition_index));
             CREATE TABLE floor_cursors (
                 partition_index INTEGER PRIMARY KEY, position BIGINT NOT NULL)",
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

    async fn insert(pool: &MySqlPool, messages: &[Message], _: bool) -> Result<()> {
        let mut transaction = pool.begin().await?;
        let mut insert =
            QueryBuilder::new("INSERT INTO floor_messages (partition_index, payload) ");
        insert.push_values(messages, |mut row, message| {
            row.push_bind(message.partition)
                .push_bind(&message.payload[..]);
        });
        insert.build().execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn advance(pool: &MySqlPool, partition: i32, done: i64, batch: i64) -> Result<Vec<Row>> {
        if done > 0 {
            sqlx::query(MOVE)
                .bind(done)
                .bind(partition)
                .execute(pool)
                .await?;
        }
        let read = sqlx::query(READ).bind(partition).bind(done).bind(batch);
        let rows = read.fetch_all(pool).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn transact(pool: &MySqlPool, partition: i32, batch: i64, sink: &Sink) -> Result<usize> {
        let mut transaction = pool.begin().await?;
        let cursor = "SELECT position FROM floor_cursors WHERE partition_index = ? FOR UPDATE";
        let cursor = sqlx::query(cursor).bind(partition);
        let position: i64 = cursor.fetch_one(&mut *transaction).await?.get(0);
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

    async fn wait(pool: &MySqlPool, state: &mut Waiting) -> Result<()> {
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
