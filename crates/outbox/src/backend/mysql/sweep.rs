//! The vacuum's step: runs that are settled, and their messages.

use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, Row as _};

use super::{Statements, query, sequence};
use crate::backend::{Answer, Backend as _, PartitionId, Store, Swept};

/// A run that is settled.
#[derive(Debug)]
struct Run {
    first_seq: i64,
    last_seq: i64,
    ids: String,
}

/// Removes whole runs, the last of which may go over the limit. One that is longer than the limit by itself
/// loses its messages in several steps, and goes with the last of them: a step is never too large for a
/// server that is slow.
pub(super) async fn sweep(
    store: &Store<MySql>,
    partition_id: PartitionId,
    limit: u32,
) -> Answer<Swept> {
    let sql = &store.sql;
    let mut transaction = MySql::begin(store, None).await?;
    // Whoever does not get the bookkeeping row leaves it to the one who has it.
    let mark = query!(sql.lock_vacuum)
        .bind(partition_id.0)
        .fetch_optional(&mut *transaction)
        .await?;
    let Some(mark) = mark else {
        transaction.roll_back().await?;
        return Ok(Swept {
            busy: true,
            ..Swept::default()
        });
    };
    let vacuumed: i64 = mark.try_get(0)?;
    let runs = query!(sql.sweep)
        .bind(partition_id.0)
        .bind(vacuumed)
        .bind(vacuumed + i64::from(limit))
        .try_map(|row: MySqlRow| {
            Ok(Run {
                first_seq: row.try_get(0)?,
                last_seq: row.try_get(1)?,
                ids: row.try_get(2)?,
            })
        })
        .fetch_all(&mut *transaction)
        .await?;
    let Some(last) = runs.last() else {
        transaction.roll_back().await?;
        return Ok(Swept::default());
    };
    let ids = runs.iter().flat_map(|run| sequence::unpack(&run.ids));
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // By what the runs name: of a long one some may have gone already.
    let more = ids.len() >= limit;
    let mut is_last_step = true;
    if runs.len() == 1 && ids.len() > limit {
        ids = present(sql, &mut transaction, &ids).await?;
        is_last_step = ids.len() <= limit;
        ids.truncate(limit);
    }
    let messages = query!(sql.remove)
        .bind(json!(ids).to_string())
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if is_last_step {
        let swept: Vec<_> = runs
            .iter()
            .map(|run| (partition_id.0, run.first_seq))
            .collect();
        query!(sql.unlist)
            .bind(json!(swept).to_string())
            .execute(&mut *transaction)
            .await?;
        query!(sql.advance_vacuum)
            .bind(last.last_seq)
            .bind(partition_id.0)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(Swept {
        messages,
        more,
        busy: false,
    })
}

/// Those of the messages that are still there.
async fn present(
    sql: &Statements,
    connection: &mut MySqlConnection,
    ids: &[i64],
) -> Answer<Vec<i64>> {
    let mut present = query!(sql.present)
        .bind(json!(ids).to_string())
        .try_map(|row: MySqlRow| row.try_get(0))
        .fetch_all(connection)
        .await?;
    present.sort_unstable();
    Ok(present)
}
