//! Dead letters.

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Row as _, Sqlite};

use super::Statements;
use crate::backend::decode::dead_letter;
use crate::backend::prefix::query;
use crate::backend::{Answer, Backend as _, Conclusion, DeadLetterVerbs, Store};
use crate::dead_letter::{DeadLetter, DeadLetterFilter, DeadLetterStatus};
use crate::message::OutboxMessageId;

impl DeadLetterVerbs for Sqlite {
    async fn dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> Answer<Vec<DeadLetter>> {
        let letters = filtered(query!(store.sql.dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .bind(i64::from(filter.limit))
            .bind(filter.payloads)
            .try_map(|row: SqliteRow| dead_letter!(row))
            .fetch_all(&store.pool)
            .await?;
        Ok(letters)
    }

    async fn count_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let row = filtered(query!(store.sql.count_dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .fetch_one(&store.pool)
            .await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0))
    }

    async fn replay_dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
        token: &str,
        claim_millis: i64,
    ) -> Answer<Vec<DeadLetter>> {
        let mut transaction = Self::begin(store, None).await?;
        filtered(query!(store.sql.replay_dead_letters), filter)
            .bind(i64::from(filter.limit))
            .bind(token)
            .bind(claim_millis)
            .execute(&mut *transaction)
            .await?;
        let letters = query!(store.sql.claimed_dead_letters)
            .bind(token)
            .try_map(|row: SqliteRow| dead_letter!(row))
            .fetch_all(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(letters)
    }

    async fn conclude_dead_letters(
        store: &Store<Self>,
        letters: &[(i64, Option<&str>)],
        conclusion: &Conclusion,
    ) -> Answer<u64> {
        let mut transaction = Self::begin(store, None).await?;
        let mut concluded = 0;
        for (id, token) in letters {
            let result = query!(store.sql.conclude_dead_letter)
                .bind(id)
                .bind(token)
                .bind(conclusion.status())
                .bind(conclusion.reason())
                .execute(&mut *transaction)
                .await?;
            concluded += result.rows_affected();
        }
        transaction.commit().await?;
        Ok(concluded)
    }

    async fn cleanup_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let removed = filtered(query!(store.sql.cleanup_dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .bind(i64::from(filter.limit))
            .execute(&store.pool)
            .await?;
        Ok(removed.rows_affected())
    }

    async fn take_dead_letter(
        sql: &Statements,
        connection: &mut SqliteConnection,
        id: i64,
    ) -> Answer<Option<DeadLetter>> {
        let letter = query!(sql.take_dead_letter)
            .bind(id)
            .try_map(|row: SqliteRow| dead_letter!(row))
            .fetch_optional(connection)
            .await?;
        Ok(letter)
    }

    async fn mark_requeued(
        sql: &Statements,
        connection: &mut SqliteConnection,
        id: i64,
        message_id: OutboxMessageId,
    ) -> Answer<()> {
        query!(sql.mark_requeued)
            .bind(id)
            .bind(message_id.0)
            .execute(connection)
            .await?;
        Ok(())
    }
}

/// Binds the part of a filter that all statements have in common.
fn filtered<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    filter: &'q DeadLetterFilter,
) -> Query<'q, Sqlite, SqliteArguments> {
    query
        .bind(filter.queue.as_deref())
        .bind(filter.partition.map(i64::from))
        .bind(filter.payload_type.as_deref())
        .bind(filter.ids.start())
        .bind(filter.ids.end())
}
