//! What an operator sees and does.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Postgres, Row as _, SqlSafeStr as _};

use super::Session;
use crate::audit::{KEPT, NewEntry};
use crate::backend::decode::{directory, partition_stats, stored_message};
use crate::backend::prefix::query;
use crate::backend::{
    Answer, ORPHAN_MILLIS, OperatorVerbs, OwnTransaction, PartitionId, Seq, Store, StoredMessage,
};
use crate::stats::PartitionStats;

impl OperatorVerbs for Postgres {
    async fn stats(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Vec<PartitionStats>> {
        let mut session = Session::open(store).await?;
        let stats = query!(store.sql.stats)
            .bind(partitions.iter().map(|id| id.0).collect::<Vec<_>>())
            .try_map(|row: PgRow| partition_stats!(row))
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
        let messages = query!(store.sql.peek)
            .bind(partition_id.0)
            .bind(from.map(|from| from.0))
            .bind(i64::from(limit))
            .try_map(|row: PgRow| {
                let (id, seq) = (row.try_get("id")?, row.try_get("seq")?);
                Ok(stored_message!(&row, id, seq))
            })
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(messages)
    }

    directory!(PgRow);

    async fn record(store: &Store<Self>, entry: &NewEntry<'_>) -> Answer<()> {
        let mut session = Session::open(store).await?;
        let row = query!(store.sql.record)
            .bind(entry.actor)
            .bind(entry.action)
            .bind(entry.target)
            .bind(entry.reason)
            .fetch_one(session.connection())
            .await?;
        query!(store.sql.forget_records)
            .bind(row.try_get::<i64, _>(0)? - KEPT)
            .execute(session.connection())
            .await?;
        session.end().await
    }

    async fn pause(
        store: &Store<Self>,
        queue: &str,
        partition_id: Option<PartitionId>,
        paused: bool,
    ) -> Answer<()> {
        let mut session = Session::open(store).await?;
        let query = match (partition_id, paused) {
            (None, _) => query!(store.sql.pause_queue).bind(queue).bind(paused),
            (Some(id), true) => query!(store.sql.pause_partition).bind(id.0),
            (Some(id), false) => query!(store.sql.resume_partition).bind(id.0),
        };
        query.execute(session.connection()).await?;
        session.end().await?;
        Ok(())
    }

    async fn repair(store: &Store<Self>) -> Answer<u64> {
        // One snapshot for all statements: what commits later is not in it and is found as new.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE; \
             SET LOCAL idle_in_transaction_session_timeout = {ORPHAN_MILLIS}"
        );
        let begin = AssertSqlSafe(begin).into_sql_str();
        let mut transaction = OwnTransaction::begin(&store.workers, begin).await?;
        query!(store.sql.repair_lock)
            .execute(&mut *transaction)
            .await?;
        let row = query!(store.sql.repair_runs)
            .fetch_one(&mut *transaction)
            .await?;
        query!(store.sql.repair_ids)
            .execute(&mut *transaction)
            .await?;
        query!(store.sql.repair_partitions)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0))
    }
}
