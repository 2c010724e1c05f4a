//! Dead letters: each verb is one statement.

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};

use super::{Session, Statements};
use crate::backend::decode::dead_letter;
use crate::backend::prefix::query;
use crate::backend::{Answer, Conclusion, DeadLetterVerbs, Store};
use crate::dead_letter::{DeadLetter, DeadLetterFilter, DeadLetterStatus};
use crate::message::OutboxMessageId;

impl DeadLetterVerbs for Postgres {
    async fn dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> Answer<Vec<DeadLetter>> {
        let mut session = Session::open(store).await?;
        let letters = filtered(query!(store.sql.dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .bind(i64::from(filter.limit))
            .bind(filter.payloads)
            .try_map(|row: PgRow| dead_letter!(row))
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(letters)
    }

    async fn count_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let mut session = Session::open(store).await?;
        let row = filtered(query!(store.sql.count_dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .fetch_one(session.connection())
            .await?;
        session.end().await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0))
    }

    async fn replay_dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
        token: &str,
        claim_millis: i64,
    ) -> Answer<Vec<DeadLetter>> {
        let mut session = Session::open(store).await?;
        let letters = filtered(query!(store.sql.replay_dead_letters), filter)
            .bind(i64::from(filter.limit))
            .bind(token)
            .bind(claim_millis)
            .try_map(|row: PgRow| dead_letter!(row))
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(letters)
    }

    async fn conclude_dead_letters(
        store: &Store<Self>,
        letters: &[(i64, Option<&str>)],
        conclusion: &Conclusion,
    ) -> Answer<u64> {
        let mut session = Session::open(store).await?;
        let (ids, tokens): (Vec<i64>, Vec<Option<&str>>) = letters.iter().copied().unzip();
        let concluded = query!(store.sql.conclude_dead_letters)
            .bind(ids)
            .bind(tokens)
            .bind(conclusion.status())
            .bind(conclusion.reason())
            .execute(session.connection())
            .await?;
        session.end().await?;
        Ok(concluded.rows_affected())
    }

    async fn cleanup_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let mut session = Session::open(store).await?;
        let removed = filtered(query!(store.sql.cleanup_dead_letters), filter)
            .bind(filter.status.map(DeadLetterStatus::as_str))
            .bind(i64::from(filter.limit))
            .execute(session.connection())
            .await?;
        session.end().await?;
        Ok(removed.rows_affected())
    }

    async fn take_dead_letter(
        sql: &Statements,
        connection: &mut PgConnection,
        id: i64,
    ) -> Answer<Option<DeadLetter>> {
        let letter = query!(sql.take_dead_letter)
            .bind(id)
            .try_map(|row: PgRow| dead_letter!(row))
            .fetch_optional(connection)
            .await?;
        Ok(letter)
    }

    async fn mark_requeued(
        sql: &Statements,
        connection: &mut PgConnection,
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
    query: Query<'q, Postgres, PgArguments>,
    filter: &'q DeadLetterFilter,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(filter.queue.as_deref())
        .bind(filter.partition.map(i64::from))
        .bind(filter.payload_type.as_deref())
        .bind(filter.ids.start())
        .bind(filter.ids.end())
}
