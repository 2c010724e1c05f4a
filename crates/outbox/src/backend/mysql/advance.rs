//! The step of whoever holds a lease: it settles or renews and learns what comes next in one round trip,
//! and reads those messages in a second one. A run tells how large its messages are, so nothing is read
//! that is then left out.

use std::collections::HashMap;
use std::fmt::Display;

use futures_util::TryStreamExt as _;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Row as _};

use super::text::{Literal, fill, filled};
use super::{Statements, query, sequence};
use crate::backend::decode::{cut_at_a_hole, numbered_message};
use crate::backend::{
    Advance, Answer, Head, Lease, PartitionId, ReadLimit, Seq, Settlement, StoredMessage,
};
use crate::error::OutboxError;

/// A message that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    seq: i64,
    id: i64,
    size: u64,
}

pub(super) async fn advance(
    sql: &Statements,
    connection: &mut MySqlConnection,
    lease: Lease,
    settlement: Option<&Settlement>,
    limit: ReadLimit,
) -> Answer<Advance> {
    let step = AssertSqlSafe(step(sql, lease, settlement, limit));
    let mut results = sqlx::raw_sql(step).fetch_many(&mut *connection);
    let (mut held, mut rows) = (None, Vec::new());
    while let Some(result) = results.try_next().await? {
        match result {
            // A renewal is counted, so a row that was found was also changed.
            Either::Left(done) => drop(held.get_or_insert(done.rows_affected() == 1)),
            Either::Right(row) => rows.push(row),
        }
    }
    drop(results);
    let Some(mut head) = head(&rows)?.filter(|_| held == Some(true)) else {
        return Ok(Advance::Lost);
    };
    for dead in settlement
        .iter()
        .flat_map(|settlement| &settlement.dead_letters)
    {
        query!(sql.bury)
            .bind(dead.seq.0)
            .bind(dead.attempts)
            .bind(&dead.reason)
            .bind(dead.id.0)
            .execute(&mut *connection)
            .await?;
    }
    if !head.paused || limit.despite_pause {
        let mut next = next(&rows)?;
        cut_at_a_hole(lease.partition_id, head.cursor, &mut next, |next| {
            Seq(next.seq)
        });
        let next = within(limit, next);
        head.messages = read(sql, connection, lease, &next).await?;
    }
    Ok(Advance::Held(head))
}

/// Two statements: the first settles or just renews, the second looks.
fn step(
    sql: &Statements,
    lease: Lease,
    settlement: Option<&Settlement>,
    limit: ReadLimit,
) -> String {
    let (partition, epoch, most) = (&lease.partition_id.0, &lease.epoch.0, &limit.messages);
    let mut text = match settlement {
        Some(settlement) => {
            let last_error = settlement.last_error.as_deref().map(str::as_bytes);
            let values: [&dyn Display; 6] = [
                &settlement.cursor.0,
                &settlement.attempts,
                &Literal("_utf8mb4 ", last_error),
                partition,
                epoch,
                &settlement.cursor.0,
            ];
            filled(&sql.settle, &values)
        }
        None => filled(&sql.hold, &[partition, epoch]),
    };
    text.push_str(";\n");
    let values: [&dyn Display; 9] = [
        partition, epoch, most, most, partition, most, most, partition, most,
    ];
    fill(&mut text, &sql.head, &values);
    text
}

/// Where the partition stands, unless the lease is gone.
fn head(rows: &[MySqlRow]) -> Answer<Option<Head>> {
    for row in rows {
        let Some(cursor) = row.try_get(0)? else {
            continue;
        };
        return Ok(Some(Head {
            cursor: Seq(cursor),
            attempts: u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX),
            paused: row.try_get(2)?,
            session: Some(row.try_get(3)?),
            messages: Vec::new(),
        }));
    }
    Ok(None)
}

/// What the runs have, in order.
fn next(rows: &[MySqlRow]) -> Answer<Vec<Next>> {
    let mut next = Vec::new();
    for row in rows {
        let Some(first_seq) = row.try_get::<Option<i64>, _>(4)? else {
            continue;
        };
        let (ids, sizes): (&str, &str) = (row.try_get(5)?, row.try_get(6)?);
        let messages = sequence::unpack(ids).zip(sequence::unpack(sizes));
        next.extend((first_seq..).zip(messages).map(|(seq, (id, size))| Next {
            seq,
            id,
            size: u64::try_from(size).unwrap_or(0),
        }));
    }
    next.sort_unstable();
    Ok(next)
}

fn within(limit: ReadLimit, mut next: Vec<Next>) -> Vec<Next> {
    let mut bytes = 0_u64;
    let most = usize::try_from(limit.messages).unwrap_or(usize::MAX);
    let fit = next.iter().take(most).take_while(|message| {
        let fits = bytes < limit.bytes;
        bytes = bytes.saturating_add(message.size);
        fits
    });
    let fit = fit.count();
    next.truncate(fit);
    next
}

/// The rows of messages, by id.
async fn rows(
    sql: &Statements,
    connection: &mut MySqlConnection,
    ids: impl Iterator<Item = i64>,
) -> Answer<HashMap<i64, MySqlRow>> {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let mut found = HashMap::with_capacity(ids.len());
    if ids.is_empty() {
        return Ok(found);
    }
    let text = AssertSqlSafe(filled(&sql.messages, &[&ids.join(",")]));
    for row in sqlx::raw_sql(text).fetch_all(connection).await? {
        found.insert(row.try_get::<i64, _>(0)?, row);
    }
    Ok(found)
}

/// What waits, from a number on or from the head, for whoever holds nothing.
pub(super) async fn peek(
    sql: &Statements,
    connection: &mut MySqlConnection,
    partition_id: PartitionId,
    from: Option<Seq>,
    limit: u32,
) -> Answer<Vec<StoredMessage>> {
    let cursor = query!(sql.cursor).bind(partition_id.0);
    let Some(cursor) = cursor.fetch_optional(&mut *connection).await? else {
        return Ok(Vec::new());
    };
    let head = cursor.try_get::<i64, _>(0)? + 1;
    let first = from.map_or(head, |from| from.0.max(head));
    let end = first.saturating_add(i64::from(limit));
    let runs = query!(sql.peek)
        .bind(first)
        .bind(first)
        .bind(limit)
        .bind(partition_id.0)
        .bind(first)
        .bind(limit)
        .bind(partition_id.0)
        .bind(first)
        .bind(end)
        .fetch_all(&mut *connection)
        .await?;
    let mut next = Vec::new();
    for run in &runs {
        let first_seq: i64 = run.try_get(0)?;
        next.extend((first_seq..end).zip(sequence::unpack(run.try_get(1)?)));
    }
    next.sort_unstable();
    let found = rows(sql, connection, next.iter().map(|(_, id)| *id)).await?;
    let mut messages = Vec::with_capacity(next.len());
    for (seq, id) in next {
        // One that is settled meanwhile may have gone.
        if let Some(row) = found.get(&id) {
            messages.push(numbered_message!(row, 1, id, seq));
        }
    }
    Ok(messages)
}

async fn read(
    sql: &Statements,
    connection: &mut MySqlConnection,
    lease: Lease,
    next: &[Next],
) -> Answer<Vec<StoredMessage>> {
    let found = rows(sql, connection, next.iter().map(|message| message.id)).await?;
    let message = |&Next { seq, id, .. }: &Next| {
        let row = found.get(&id).ok_or(OutboxError::MissingMessage {
            partition_id: lease.partition_id.0,
            seq,
        })?;
        Ok(numbered_message!(row, 1, id, seq))
    };
    next.iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(messages: u32, bytes: u64, sizes: &[u64]) -> usize {
        let limit = ReadLimit {
            messages,
            bytes,
            despite_pause: false,
        };
        let of = |(seq, &size): (i64, &u64)| Next { seq, id: 0, size };
        within(limit, (1..).zip(sizes).map(of).collect()).len()
    }

    #[test]
    fn a_read_ends_with_the_message_that_goes_over() {
        assert_eq!(taken(10, 100, &[40, 40, 40, 40]), 3);
        assert_eq!(taken(10, 100, &[40, 60, 40]), 2);
        assert_eq!(taken(2, 100, &[40, 40, 40]), 2);
        assert_eq!(taken(10, 1, &[500, 500]), 1);
        assert_eq!(taken(10, 1, &[0, 0, 500, 500]), 3);
        assert_eq!(taken(0, 100, &[40]), 0);
    }
}
