//! What an operator sees and does.

use serde_json::json;
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, Row as _};

use super::advance;
use crate::audit::{KEPT, NewEntry};
use crate::backend::decode::{directory, partition_stats};
use crate::backend::prefix::query;
use crate::backend::{
    Answer, OperatorVerbs, OwnConnection, PartitionId, Seq, Session, Store, StoredMessage,
};
use crate::stats::PartitionStats;

impl OperatorVerbs for MySql {
    async fn stats(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Vec<PartitionStats>> {
        let ids: Vec<i64> = partitions.iter().map(|id| id.0).collect();
        let mut session = Session::open(store).await?;
        let stats = query!(store.sql.stats)
            .bind(json!(ids).to_string())
            .try_map(|row: MySqlRow| partition_stats!(row))
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(stats)
    }

    async fn peek(
        store: &Store<Self>,
        partition_id: PartitionId,
        from: Option<Seq>,
        limit: u32,
    ) -> Answer<Vec<StoredMessage>> {
        let mut session = Session::open(store).await?;
        let connection = session.connection();
        let messages = advance::peek(&store.sql, connection, partition_id, from, limit).await?;
        session.end().await?;
        Ok(messages)
    }

    directory!(MySqlRow);

    async fn record(store: &Store<Self>, entry: &NewEntry<'_>) -> Answer<()> {
        let mut own = OwnConnection::acquire(&store.workers).await?;
        let recorded = query!(store.sql.record)
            .bind(entry.actor)
            .bind(entry.action)
            .bind(entry.target)
            .bind(entry.reason)
            .execute(&mut *own)
            .await?;
        let id = i64::try_from(recorded.last_insert_id()).unwrap_or(0);
        query!(store.sql.forget_records)
            .bind(id - KEPT)
            .execute(&mut *own)
            .await?;
        own.give_back();
        Ok(())
    }

    async fn pause(
        store: &Store<Self>,
        queue: &str,
        partition_id: Option<PartitionId>,
        paused: bool,
    ) -> Answer<()> {
        let query = match partition_id {
            None => query!(store.sql.pause_queue).bind(paused).bind(queue),
            Some(id) => query!(store.sql.pause_partition).bind(paused).bind(id.0),
        };
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        query.execute(&mut *connection).await?;
        connection.give_back();
        Ok(())
    }

    async fn repair(_: &Store<Self>) -> Answer<u64> {
        Ok(0)
    }
}
