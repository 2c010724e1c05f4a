//! The producer's two statements: the messages, and a marker for each. They travel together, as text in
//! which every value is a number or hexadecimal: one round trip, and nothing to prepare for each batch
//! size. What holds them together is the caller's transaction, or one of ours on a connection that has
//! none.
//!
//! The driver logs statements, and payloads are no business of a log: see [`Unlogged`] and
//! [`would_be_logged`].
//!
//! After an error the caller rolls back. One who commits all the same commits nothing that is
//! delivered: a message without its marker is no message.

use std::fmt::{Display, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::TryStreamExt as _;
use log::LevelFilter;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use tracing::Dispatch;
use tracing::dispatcher::{self, DefaultGuard};

use super::text::{Literal, fill};
use super::{Statements, number_of};
use crate::backend::{Addressed, Answer};
use crate::error::OutboxError;
use crate::message::OutboxMessageId;

/// The most messages of one statement.
const MAX_ROWS: usize = 1000;
/// The most bytes of one statement's messages, unless a single message has more: a packet is 16 MB at
/// most, unless configured otherwise, and hexadecimal is twice as long.
const MAX_BYTES: usize = 1 << 20;

/// "There is no such savepoint."
const NO_SAVEPOINT: u16 = 1305;

pub(super) async fn enqueue(
    sql: &Statements,
    connection: &mut MySqlConnection,
    messages: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    if is_in_transaction(connection).await? {
        return write_all(sql, connection, messages).await;
    }
    let mut transaction = connection.begin().await?;
    let written = write_all(sql, &mut transaction, messages).await;
    // Either end is awaited: a rollback that is left to the drop waits for the connection's next use.
    match written {
        Ok(_) => transaction.commit().await?,
        Err(_) => drop(transaction.rollback().await),
    }
    written
}

/// Whether the connection has a transaction, begun by sqlx or by hand. Only in the second case the
/// server is asked: a savepoint set outside of a transaction is gone at once.
async fn is_in_transaction(connection: &mut MySqlConnection) -> Answer<bool> {
    if connection.is_in_transaction() {
        return Ok(true);
    }
    let probe = "SAVEPOINT outbox_enqueue; RELEASE SAVEPOINT outbox_enqueue";
    match sqlx::raw_sql(probe).execute(connection).await {
        Err(error) if number_of(&error) == Some(NO_SAVEPOINT) => Ok(false),
        probed => Ok(probed.map(|_| true)?),
    }
}

/// Writes messages and markers. A batch that is too large for one statement is held together by a
/// savepoint, for the server undoes no more than the statement that failed.
async fn write_all(
    sql: &Statements,
    connection: &mut MySqlConnection,
    messages: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    if chunk_len(messages) == messages.len() {
        return write(sql, connection, messages).await;
    }
    sqlx::raw_sql("SAVEPOINT outbox_enqueue")
        .execute(&mut *connection)
        .await?;
    let written = write_chunks(sql, connection, messages).await;
    let end = match &written {
        Ok(_) => "RELEASE SAVEPOINT outbox_enqueue",
        Err(_) => "ROLLBACK TO SAVEPOINT outbox_enqueue",
    };
    let ended = sqlx::raw_sql(end).execute(connection).await;
    let ids = written?;
    ended?;
    Ok(ids)
}

async fn write_chunks(
    sql: &Statements,
    connection: &mut MySqlConnection,
    messages: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    let mut ids = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(chunk_len(rest));
        ids.append(&mut write(sql, connection, chunk).await?);
        rest = later;
    }
    Ok(ids)
}

/// How many of the messages, from the first on, go into one statement; one at least.
fn chunk_len(messages: &[Addressed<'_>]) -> usize {
    let mut bytes = 0_usize;
    let fit = messages.iter().take(MAX_ROWS).take_while(|(_, message)| {
        bytes = bytes.saturating_add(message.size());
        bytes <= MAX_BYTES
    });
    fit.count().max(1)
}

async fn write(
    sql: &Statements,
    connection: &mut MySqlConnection,
    chunk: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    let is_large = matches!(chunk, [(_, message)] if message.size() > MAX_BYTES);
    let (first, last) = if is_large || would_be_logged() {
        let first = insert_bound(sql, connection, chunk).await?;
        let mark = sqlx::raw_sql(AssertSqlSafe(mark(sql, chunk)));
        (first, mark.execute(connection).await?.last_insert_id())
    } else {
        let both = format!("{}; {}", insert(sql, chunk), mark(sql, chunk));
        let results = sqlx::raw_sql(AssertSqlSafe(both)).execute_many(connection);
        let ids = results.map_ok(|result| result.last_insert_id());
        let ids: Vec<_> = Unlogged::new(ids.try_collect()).await?;
        let [first, last] = ids[..] else {
            return Err(sqlx::Error::RowNotFound.into());
        };
        (first, last)
    };
    ids_between(first, last, chunk.len() as u64)
}

/// Whether nothing could keep a statement out of the log. Applications without `tracing` get the
/// driver's log through the `log` crate, which knows no way to leave something out; there the payloads
/// are bound, at the price of another round trip, or two for several messages.
fn would_be_logged() -> bool {
    !dispatcher::has_been_set() && log::max_level() != LevelFilter::Off
}

/// A statement that is not logged: not while it runs, and not when it is dropped half-way, for the driver
/// logs it when it forgets it.
struct Unlogged<F>(Option<Pin<Box<F>>>);

impl<F> Unlogged<F> {
    fn new(statement: F) -> Self {
        Self(Some(Box::pin(statement)))
    }

    /// Nothing of this thread is logged while the answer lives. Only where `tracing` is in use already:
    /// its first use in a process ends what it passes on to `log`.
    fn silence() -> Option<DefaultGuard> {
        dispatcher::has_been_set().then(|| dispatcher::set_default(&Dispatch::none()))
    }
}

impl<F: Future> Future for Unlogged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _silence = Self::silence();
        match &mut self.0 {
            Some(statement) => statement.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Unlogged<F> {
    fn drop(&mut self) {
        let _silence = Self::silence();
        self.0 = None;
    }
}

/// Writes the messages with their values bound, and answers the id of the first. What is prepared for
/// several is not kept: there are as many statements as there are sizes.
async fn insert_bound(
    sql: &Statements,
    connection: &mut MySqlConnection,
    chunk: &[Addressed<'_>],
) -> Answer<u64> {
    let (insert, row) = sql.enqueue.rsplit_once("VALUES").unwrap_or_default();
    let rows = vec![row.trim(); chunk.len()].join(", ");
    let text = AssertSqlSafe(format!("{insert}VALUES {rows}"));
    let mut insert = sqlx::query(text).persistent(chunk.len() == 1);
    for (partition_id, message) in chunk {
        insert = insert
            .bind(partition_id.0)
            .bind(message.payload_type())
            .bind(message.key())
            .bind(message.encoded_headers())
            .bind(message.payload());
    }
    Ok(insert.execute(connection).await?.last_insert_id())
}

/// The statement that writes the messages: the one with placeholders, filled in. Never INSERT … SELECT:
/// that takes the AUTO-INC lock, which other producers would wait for, and its ids may have holes.
fn insert(sql: &Statements, chunk: &[Addressed<'_>]) -> String {
    let (insert, row) = sql.enqueue.rsplit_once("VALUES").unwrap_or_default();
    let bytes: usize = chunk.iter().map(|(_, one)| one.payload().len()).sum();
    let mut text = String::with_capacity(insert.len() + 2 * bytes + 200 * chunk.len());
    text.push_str(insert);
    let mut separator = "VALUES";
    for (partition_id, message) in chunk {
        text.push_str(separator);
        let headers = message.encoded_headers();
        let values: [&dyn Display; 5] = [
            &partition_id.0,
            &Literal("_ascii ", Some(message.payload_type().as_bytes())),
            &Literal("_utf8mb4 ", message.key().map(str::as_bytes)),
            &Literal("_utf8mb4 ", headers.as_deref().map(str::as_bytes)),
            &Literal("", Some(message.payload())),
        ];
        fill(&mut text, row, &values);
        separator = ",";
    }
    text
}

/// The statement that marks what the one before it has written. The ids of one INSERT … VALUES are the
/// session's increment apart; the last of them comes back as this statement's insert id, and with it the
/// increment.
fn mark(sql: &Statements, chunk: &[Addressed<'_>]) -> String {
    let mut text = sql.mark.trim_end().to_owned();
    for (place, (partition_id, message)) in chunk.iter().enumerate() {
        let separator = if place == 0 { " " } else { "," };
        let mut id = format!("LAST_INSERT_ID() + {place} * @@SESSION.auto_increment_increment");
        if place + 1 == chunk.len() {
            // From here on it is another; all others have been read by now.
            id = format!("LAST_INSERT_ID({id})");
        }
        let size = message.payload().len();
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}({}, {id}, {size})", partition_id.0);
    }
    text
}

/// So many ids, evenly spaced: what lies between two of them is the session's increment.
fn ids_between(first: u64, last: u64, count: u64) -> Answer<Vec<OutboxMessageId>> {
    let increment = last
        .saturating_sub(first)
        .checked_div(count - 1)
        .unwrap_or(0);
    (0..count)
        .map(|place| {
            let id = i64::try_from(first + place * increment);
            id.map(OutboxMessageId)
                .map_err(|error| OutboxError::from(sqlx::Error::Decode(error.into())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PartitionId;
    use crate::message::EnqueueMessage;

    fn ids(first: u64, last: u64, count: u64) -> Vec<i64> {
        let ids = ids_between(first, last, count).unwrap();
        ids.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn ids_follow_the_increment_of_the_session() {
        assert_eq!(ids(7, 7, 1), [7]);
        assert_eq!(ids(7, 9, 3), [7, 8, 9]);
        assert_eq!(ids(7, 13, 3), [7, 10, 13]);
        assert!(ids_between(u64::MAX, u64::MAX, 1).is_err());
    }

    #[test]
    fn a_statement_is_bounded_in_rows_and_bytes() {
        let of = |size: usize| EnqueueMessage::to(0, vec![0; size], "bytes");
        let (small, large) = (of(10), of(MAX_BYTES / 2 - 100));
        let addressed = |message, count| vec![(PartitionId(1), message); count];
        assert_eq!(chunk_len(&addressed(&small, 5)), 5);
        assert_eq!(chunk_len(&addressed(&small, MAX_ROWS + 1)), MAX_ROWS);
        assert_eq!(chunk_len(&addressed(&large, 5)), 2);
        assert_eq!(chunk_len(&addressed(&of(MAX_BYTES + 1), 5)), 1);
    }
}
