//! The sequencer's statements: text in which every value is a number, so that many partitions are one
//! round trip to look and one to write.

use std::collections::BTreeMap;
use std::fmt::Display;

use futures_util::TryStreamExt as _;
use serde_json::json;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Either, MySql, Row as _};

use super::Statements;
use super::text::filled;
use crate::backend::{Answer, Backend as _, PartitionId, Sequenced, Store};

/// A partition that is locked, and what it has that is new.
#[derive(Debug, Default)]
struct Locked {
    last_seq: i64,
    ids: Vec<i64>,
    /// Their payloads' sizes.
    sizes: Vec<i64>,
}

pub(super) async fn sequence(
    store: &Store<MySql>,
    partitions: &[PartitionId],
    limit: u32,
) -> Answer<Vec<(PartitionId, Sequenced)>> {
    let sql = &store.sql;
    let mut transaction = MySql::begin(store, None).await?;
    let locked = look(sql, &mut transaction, partitions, limit).await?;
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

/// Locks the partitions and finds what is new in them, without locks on what is found: a locking read
/// could find the second message of a transaction and not the first.
///
/// A snapshot alone is no answer to what committed first. MariaDB takes it bit by bit, while others commit:
/// it may see a message and not the one that had committed before that was enqueued. So the highest visible
/// id is asked for first, and what is found, in a later snapshot, is no higher: whatever had committed
/// before one of these was enqueued, had committed before that snapshot was begun.
async fn look(
    sql: &Statements,
    connection: &mut MySqlConnection,
    partitions: &[PartitionId],
    limit: u32,
) -> Answer<BTreeMap<i64, Locked>> {
    let mut wanted: Vec<i64> = partitions.iter().map(|id| id.0).collect();
    wanted.sort_unstable();
    let of_each = |statement: &dyn Fn(&i64) -> String| -> String {
        let each: Vec<_> = wanted
            .iter()
            .map(|id| format!("({})", statement(id)))
            .collect();
        each.join(" UNION ALL ")
    };
    let statements = [
        filled(&sql.lock_partitions, &[&json!(wanted)]),
        filled(
            &sql.highest,
            &[&of_each(&|id| filled(&sql.highest_of, &[id]))],
        ),
        of_each(&|id| filled(&sql.sequence, &[id, &limit])),
        // The session is given back as it was.
        "SET @outbox_highest = NULL".to_owned(),
    ];
    let text = AssertSqlSafe(statements.join(";\n"));
    let mut results = sqlx::raw_sql(text).fetch_many(connection);
    let mut locked: BTreeMap<i64, Locked> = BTreeMap::new();
    let mut found = Vec::new();
    let mut statements = 0;
    while let Some(result) = results.try_next().await? {
        match result {
            Either::Left(_) => statements += 1,
            Either::Right(row) if statements == 0 => {
                let last_seq = row.try_get(1)?;
                let one = Locked {
                    last_seq,
                    ..Locked::default()
                };
                locked.insert(row.try_get(0)?, one);
            }
            Either::Right(row) => found.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)),
        }
    }
    // In order, wherever the server began.
    found.sort_unstable();
    for (partition_id, id, size) in found {
        // Those that somebody else has were looked at in vain.
        if let Some(locked) = locked.get_mut(&partition_id) {
            locked.ids.push(id);
            locked.sizes.push(size);
        }
    }
    Ok(locked)
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
        let width = width(locked.ids.iter().chain(&locked.sizes));
        let (ids, sizes) = (pack(&locked.ids, width), pack(&locked.sizes, width));
        let first_seq = locked.last_seq + 1;
        let run: [&dyn Display; 6] = [partition_id, &first_seq, &last_seq, &width, &ids, &sizes];
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

/// How many characters the longest of these numbers and a comma need.
fn width<'a>(numbers: impl Iterator<Item = &'a i64>) -> usize {
    numbers.max().map_or(0, |longest| longest.to_string().len()) + 1
}

/// Numbers as text in which all have the same width, comma included, so that a slice can be cut out by
/// place.
fn pack(numbers: &[i64], width: usize) -> String {
    let digits = width - 1;
    let packed = numbers.iter().map(|number| format!("{number:>digits$},"));
    packed.collect()
}

pub(super) fn unpack(packed: &str) -> impl Iterator<Item = i64> {
    packed
        .split(',')
        .filter_map(|number| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    #[test]
    fn a_slice_of_a_packed_run_is_cut_out_by_place() {
        let ids = [7, 8, 10, 1234];
        let width = width(ids.iter());
        let packed = pack(&ids, width);
        assert_eq!((width, &*packed), (5, "   7,   8,  10,1234,"));
        assert_eq!(unpack(&packed).collect::<Vec<_>>(), ids);
        let slice = &packed[width..3 * width];
        assert_eq!(unpack(slice).collect::<Vec<_>>(), [8, 10]);
        assert_eq!(unpack("").count(), 0);
    }

    proptest! {
        #[test]
        fn every_slice_of_every_run_comes_back(
            ids in vec(0..=i64::MAX, 1..40),
            from in any::<Index>(),
            to in any::<Index>(),
        ) {
            let (one, other) = (from.index(ids.len()), to.index(ids.len()));
            let (from, to) = (one.min(other), one.max(other) + 1);
            let width = width(ids.iter());
            let packed = pack(&ids, width);
            let slice = &packed[from * width..to * width];
            prop_assert_eq!(unpack(slice).collect::<Vec<_>>(), &ids[from..to]);
        }

        #[test]
        fn no_stored_text_makes_unpacking_panic(packed in any::<String>()) {
            unpack(&packed).count();
        }
    }
}
