//! The floor on PostgreSQL. Another process is told by `NOTIFY` in the producer's transaction.

use anyhow::Result;
use bench_contract::{Message, Sink};
use sqlx::postgres::PgListener;
use sqlx::{PgPool, Row as _};

use super::{Row, Statements, Waiting};

#[derive(Debug)]
pub(crate) struct Postgres;

impl Statements for Postgres {
    type DB = sqlx::Postgres;

    async fn create(pool: &PgPool, partitions: u16) -> Result<()> {
        sqlx::raw_sql(
            "CREATE TABLE floor_messages (id BIGINT GENERATED ALWAYS AS IDENTITY,
                 partition INTEGER NOT NULL, payload BYTEA NOT NULL, PRIMARY KEY (partition, id));
             CREATE TABLE floor_cursors (partition INTEGER PRIMARY KEY, position BIGINT NOT NULL)",
        )
        .execute(pool)
        .await?;
        sqlx::query("INSERT INTO floor_cursors SELECT n, 0 FROM generate_series(0, $1 - 1) AS n")
            .bind(i32::from(partitions))
            .execute(pool)
            .await?;
        Ok(())
    }

    async fn insert(pool: &PgPool, messages: &[Message], notify: bool) -> Result<()> {
        let mut transaction = pool.begin().await?;
        let partition = |message: &Message| i32::try_from(message.partition).unwrap_or(0);
        if let [message] = messages {
            sqlx::query("INSERT INTO floor_messages (partition, payload) VALUES ($1, $2)")
                .bind(partition(message))
                .bind(&message.payload)
                .execute(&mut *transaction)
                .await?;
        } else {
            let partitions: Vec<i32> = messages.iter().map(partition).collect();
            let payloads: Vec<&[u8]> = messages.iter().map(|m| &m.payload[..]).collect();
            sqlx::query(
                "INSERT INTO floor_messages (partition, payload)
                 SELECT * FROM UNNEST($1::integer[], $2::bytea[])",
            )
            .bind(partitions)
            .bind(payloads)
            .execute(&mut *transaction)
            .await?;
        }
        if notify {
            sqlx::query("NOTIFY floor")
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn advance(pool: &PgPool, partition: i32, done: i64, batch: i64) -> Result<Vec<Row>> {
        let rows = sqlx::query(
            "WITH moved AS (UPDATE floor_cursors SET position = $2
                            WHERE partition = $1 AND position < $2)
             SELECT id, payload FROM floor_messages
             WHERE partition = $1 AND id > $2 ORDER BY id LIMIT $3",
        )
        .bind(partition)
        .bind(done)
        .bind(batch)
        .fetch_all(pool)
        .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn transact(pool: &PgPool, partition: i32, batch: i64, sink: &Sink) -> Result<usize> {
        let mut transaction = pool.begin().await?;
        let rows = sqlx::query(
            "WITH cursor AS MATERIALIZED (
                 SELECT position FROM floor_cursors WHERE partition = $1 FOR NO KEY UPDATE)
             SELECT id, payload FROM floor_messages
             WHERE partition = $1 AND id > (SELECT position FROM cursor) ORDER BY id LIMIT $2",
        )
        .bind(partition)
        .bind(batch)
        .fetch_all(&mut *transaction)
        .await?;
        sink.handle(rows.iter().map(|row| row.get::<&[u8], _>(1)));
        if let Some(last) = rows.last() {
            sqlx::query("UPDATE floor_cursors SET position = $2 WHERE partition = $1")
                .bind(partition)
                .bind(last.get::<i64, _>(0))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(rows.len())
    }

    async fn wait(pool: &PgPool, state: &mut Waiting) -> Result<()> {
        if state.listener.is_none() {
            let mut listener = PgListener::connect_with(pool).await?;
            listener.listen("floor").await?;
            state.listener = Some(listener);
        }
        if let Some(listener) = &mut state.listener {
            listener.recv().await?;
        }
        Ok(())
    }
}
