//! Dead letters. Rows are found first and then written by primary key, so that a claim waits for
//! nobody and a scan locks nothing it does not want.

use serde_json::json;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{MySql, Row as _};

use super::Statements;
use crate::backend::decode::dead_letter;
use crate::backend::prefix::query;
use crate::backend::{Answer, Backend as _, Conclusion, DeadLetterVerbs, Session, Store};
use crate::dead_letter::{DeadLetter, DeadLetterFilter, DeadLetterStatus};
use crate::message::OutboxMessageId;

type Statement<'q> = Query<'q, MySql, MySqlArguments>;

/// Binds the part of a filter that all statements have in common. Values twice: placeholders have
/// no numbers here.
fn filtered<'q>(query: Statement<'q>, filter: &'q DeadLetterFilter) -> Statement<'q> {
    query
        .bind(filter.queue.as_deref())
        .bind(filter.queue.as_deref())
        .bind(filter.partition)
        .bind(filter.partition)
        .bind(filter.payload_type.as_deref())
        .bind(filter.payload_type.as_deref())
        .bind(filter.ids.start())
        .bind(filter.ids.end())
}

fn with_status<'q>(query: Statement<'q>, filter: &DeadLetterFilter) -> Statement<'q> {
    let status = filter.status.map(DeadLetterStatus::as_str);
    query.bind(status).bind(status)
}

fn letter(row: MySqlRow) -> Result<DeadLetter, sqlx::Error> {
    dead_letter!(row)
}

impl DeadLetterVerbs for MySql {
    async fn dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> Answer<Vec<DeadLetter>> {
        let mut session = Session::open(store).await?;
        let statement = filtered(query!(store.sql.dead_letters).bind(filter.payloads), filter);
        let letters = with_status(statement, filter)
            .bind(filter.limit)
            .try_map(letter)
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(letters)
    }

    async fn count_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let mut session = Session::open(store).await?;
        let statement = filtered(query!(store.sql.count_dead_letters), filter);
        let row = with_status(statement, filter)
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
        let mut transaction = Self::begin(store, None).await?;
        let free = filtered(query!(store.sql.free_dead_letters), filter)
            .bind(filter.limit)
            .try_map(|row: MySqlRow| row.try_get::<i64, _>(0))
            .fetch_all(&mut *transaction)
            .await?;
        let ids = json!(free).to_string();
        query!(store.sql.claim_dead_letters)
            .bind(&ids)
            .bind(token)
            .bind(claim_millis)
            .execute(&mut *transaction)
            .await?;
        let letters = query!(store.sql.claimed_dead_letters)
            .bind(&ids)
            .try_map(letter)
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
                .bind(conclusion.reason())
                .bind(conclusion.reason())
                .bind(conclusion.status())
                .bind(conclusion.status())
                .bind(id)
                .bind(token)
                .bind(conclusion.status())
                .bind(token)
                .execute(&mut *transaction)
                .await?;
            concluded += result.rows_affected();
        }
        transaction.commit().await?;
        Ok(concluded)
    }

    async fn cleanup_dead_letters(store: &Store<Self>, filter: &DeadLetterFilter) -> Answer<u64> {
        let mut session = Session::open(store).await?;
        let statement = filtered(query!(store.sql.ended_dead_letters), filter);
        let ended = with_status(statement, filter)
            .bind(filter.limit)
            .try_map(|row: MySqlRow| row.try_get::<i64, _>(0))
            .fetch_all(session.connection())
            .await?;
        let removed = query!(store.sql.cleanup_dead_letters)
            .bind(json!(ended).to_string())
            .execute(session.connection())
            .await?;
        session.end().await?;
        Ok(removed.rows_affected())
    }

    async fn take_dead_letter(
        sql: &Statements,
        connection: &mut MySqlConnection,
        id: i64,
    ) -> Answer<Option<DeadLetter>> {
        let statement = query!(sql.take_dead_letter).bind(id);
        Ok(statement.try_map(letter).fetch_optional(connection).await?)
    }

    async fn mark_requeued(
        sql: &Statements,
        connection: &mut MySqlConnection,
        id: i64,
        message_id: OutboxMessageId,
    ) -> Answer<()> {
        query!(sql.mark_requeued)
            .bind(message_id.0)
            .bind(id)
            .execute(connection)
            .await?;
        Ok(())
    }
}
