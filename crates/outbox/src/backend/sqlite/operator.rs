//! What an operator sees and does.

use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite};

use crate::audit::{KEPT, NewEntry};
use crate::backend::decode::{directory, partition_stats, stored_message};
use crate::backend::prefix::query;
use crate::backend::{
    Answer, Backend as _, OperatorVerbs, OwnConnection, PartitionId, Seq, Store, StoredMessage,
};
use crate::stats::PartitionStats;

impl OperatorVerbs for Sqlite {
    async fn stats(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Vec<PartitionStats>> {
        let mut own = OwnConnection::acquire(&store.workers).await?;
        let ids: Vec<i64> = partitions.iter().map(|id| id.0).collect();
        let stats = query!(store.sql.stats)
            .bind(json!(ids).to_string())
            .try_map(|row: SqliteRow| partition_stats!(row))
            .fetch_all(&mut *own)
            .await?;
        own.give_back();
        Ok(stats)
    }

    async fn peek(
        store: &Store<Self>,
        partition_id: PartitionId,
        from: Option<Seq>,
        limit: u32,
    ) -> Answer<Vec<StoredMessage>> {
        let mut own = OwnConnection::acquire(&store.workers).await?;
        let messages = query!(store.sql.peek)
            .bind(partition_id.0)
            .bind(from.map(|from| from.0))
            .bind(i64::from(limit))
            .try_map(|row: SqliteRow| {
                let (id, seq) = (row.try_get("id")?, row.try_get("seq")?);
                Ok(stored_message!(&row, id, seq))
            })
            .fetch_all(&mut *own)
            .await?;
        own.give_back();
        Ok(messages)
    }

    directory!(SqliteRow);

    async fn record(store: &Store<Self>, entry: &NewEntry<'_>) -> Answer<()> {
        let mut transaction = Self::begin(store, None).await?;
        let row = query!(store.sql.record)
            .bind(entry.actor)
            .bind(entry.action)
            .bind(entry.target)
            .bind(entry.reason)
            .fetch_one(&mut *transaction)
            .await?;
        query!(store.sql.forget_records)
            .bind(row.try_get::<i64, _>(0)? - KEPT)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    }

    async fn pause(
        store: &Store<Self>,
        queue: &str,
        partition_id: Option<PartitionId>,
        paused: bool,
    ) -> Answer<()> {
        let query = match partition_id {
            None => query!(store.sql.pause_queue).bind(queue),
            Some(partition_id) => query!(store.sql.pause_partition).bind(partition_id.0),
        };
        query.bind(paused).execute(&store.pool).await?;
        Ok(())
    }

    async fn repair(_: &Store<Self>) -> Answer<u64> {
        Ok(0)
    }
}
