//! The sequencer's statements. Those that write are text in which every value is a number, so that many
//! partitions are one round trip.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Row as _};

use super::text::filled;
use super::{Statements, query};
use crate::backend::{Answer, Backend as _, PartitionId, Sequenced, Store};

/// A partition that is locked, and what it has that is new.
#[derive(Debug, Default)]
struct Locked {
    last_seq: i64,
    ids: Vec<i64>,
}

pub(super) async fn sequence(
    store: &Store<MySql>,
    partitions: &[PartitionId],
    limit: u32,
) -> Answer<Vec<(PartitionId, Sequenced)>> {
    let sql = &store.sql;
    let mut transaction = MySql::begin(store, None).await?;
    let mut locked = lock(sql, &mut transaction, partitions).await?;
    look(sql, &mut transaction, &mut locked, limit).await?;
    if locked.values().all(|one| one.ids.is_empty()) {
        transaction.roll_back().await?;
    } else {
        write(sql, &mut transaction, &locked).await?;
        transaction.commit().await?;
    }
    let answer = |partition_id: &PartitionId| {
        let answer = locked
            .get(&partition_id.0)
            .map_or(Sequenced::Busy, |locked| {
                let count = u32::try_from(locked.ids.len()).unwrap_or(limit);
                let more = count == limit;
                Sequenced::Done { count, more }
            });
        (*partition_id, answer)
    };
    Ok(partitions.iter().map(answer).collect())
}

async fn lock(
    sql: &Statements,
    connection: &mut MySqlConnection,
    partitions: &[PartitionId],
) -> Answer<BTreeMap<i64, Locked>> {
    let mut wanted: Vec<i64> = partitions.iter().map(|id| id.0).collect();
    wanted.sort_unstable();
    let rows: Vec<(i64, i64)> = query!(sql.lock_partitions)
        .bind(json!(wanted).to_string())
        .try_map(|row: MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?)))
        .fetch_all(connection)
        .await?;
    let locked = |(partition_id, last_seq)| {
        let ids = Vec::new();
        (partition_id, Locked { last_seq, ids })
    };
    Ok(rows.into_iter().map(locked).collect())
}

/// Finds what is new. One snapshot, no locks: what had committed when this statement began, and nothing
/// that commits while it runs. A locking read could find the second message of a transaction and not
/// the first.
async fn look(
    sql: &Statements,
    connection: &mut MySqlConnection,
    locked: &mut BTreeMap<i64, Locked>,
    limit: u32,
) -> Answer<()> {
    if locked.is_empty() {
        return Ok(());
    }
    let each: Vec<String> = locked
        .keys()
        .map(|id| format!("({})", filled(&sql.sequence, &[id, &limit])))
        .collect();
    let all = sqlx::raw_sql(AssertSqlSafe(each.join(" UNION ALL ")));
    for row in all.fetch_all(connection).await? {
        if let Some(locked) = locked.get_mut(&row.try_get(0)?) {
            locked.ids.push(row.try_get(1)?);
        }
    }
    for locked in locked.values_mut() {
        locked.ids.sort_unstable();
    }
    Ok(())
}

/// Removes the markers, writes the runs, moves the partitions on.
async fn write(
    sql: &Statements,
    connection: &mut MySqlConnection,
    locked: &BTreeMap<i64, Locked>,
) -> Answer<()> {
    let found = || locked.iter().filter(|(_, locked)| !locked.ids.is_empty());
    let of_one = |(partition_id, locked): (&i64, &Locked)| -> Vec<(i64, i64)> {
        locked.ids.iter().map(|id| (*partition_id, *id)).collect()
    };
    let markers: Vec<(i64, i64)> = found().flat_map(of_one).collect();
    let mut statements = vec![filled(&sql.unmark, &[&json!(markers)])];
    for (partition_id, locked) in found() {
        let last_seq = locked.last_seq + i64::try_from(locked.ids.len()).unwrap_or(i64::MAX);
        let (width, packed) = pack(&locked.ids);
        let first_seq = locked.last_seq + 1;
        let run: [&dyn std::fmt::Display; 5] =
            [partition_id, &first_seq, &last_seq, &width, &packed];
        statements.push(filled(&sql.write_run, &run));
        statements.push(filled(&sql.advance_partition, &[&last_seq, partition_id]));
    }
    let mut results = sqlx::raw_sql(AssertSqlSafe(statements.join(";\n"))).execute_many(connection);
    let mut taken = None;
    while let Some(result) = results.try_next().await? {
        taken.get_or_insert(result.rows_affected());
    }
    if taken != Some(markers.len() as u64) {
        // Somebody removed markers without holding the partition. Nothing is committed.
        return Err(sqlx::Error::RowNotFound.into());
    }
    Ok(())
}

/// The ids of a run as text in which all have the same width, comma included, so that a slice can be
/// cut out by place.
fn pack(ids: &[i64]) -> (u32, String) {
    let digits = ids.iter().max().map_or(0, |id| id.to_string().len());
    let packed = ids.iter().map(|id| format!("{id:>digits$},")).collect();
    (u32::try_from(digits + 1).unwrap_or(u32::MAX), packed)
}

pub(super) fn unpack(packed: &str) -> impl Iterator<Item = i64> {
    packed.split(',').filter_map(|id| id.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_packed_run_is_the_inside_of_an_array() {
        let ids = [7, 8, 10, 1234];
        let (width, packed) = pack(&ids);
        assert_eq!((width, &*packed), (5, "   7,   8,  10,1234,"));
        assert_eq!(unpack(&packed).collect::<Vec<_>>(), ids);
        let slice = &packed[width as usize..3 * width as usize - 1];
        let inside: Vec<i64> = serde_json::from_str(&format!("[{slice}]")).unwrap();
        assert_eq!(inside, [8, 10]);
    }
}
