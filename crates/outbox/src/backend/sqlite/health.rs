//! What SQLite knows of itself.

use sqlx::{Row as _, Sqlite};

use crate::backend::prefix::query;
use crate::backend::{Answer, OwnConnection, Store};
use crate::health::{Finding, Vitals};

/// A log that has grown to this has somebody who reads on and on.
const LARGE_WAL: u64 = 256 * 1024 * 1024;

pub(super) async fn vitals(store: &Store<Sqlite>) -> Answer<Vitals> {
    let mut own = OwnConnection::acquire(&store.workers).await?;
    let row = query!(store.sql.vitals).fetch_one(&mut *own).await?;
    own.give_back();
    let mode: String = row.try_get("journal_mode")?;
    let file: Option<String> = row.try_get("file")?;
    let wal = file.and_then(|file| std::fs::metadata(format!("{file}-wal")).ok());
    let wal = wal.map_or(0, |wal| wal.len());
    let finding = match (&*mode, wal) {
        ("wal", wal) if wal > LARGE_WAL => Finding::notice(
            "journal",
            format!("the write-ahead log has grown to {} MiB", wal / 1024 / 1024),
            "it never shrinks by itself. If it goes on growing, a connection has been reading for long: \
             find it, and end it.",
        ),
        ("wal", _) => Finding::fine("journal", "write-ahead log"),
        ("memory", _) => Finding::fine("journal", "in memory"),
        (mode, _) => Finding::notice(
            "journal",
            format!("the journal's mode is {mode}"),
            "readers and writers wait for each other. PRAGMA journal_mode = WAL lets them work side by \
             side.",
        ),
    };
    Ok(Vitals {
        now_millis: row.try_get("now_millis")?,
        findings: vec![finding],
        ..Vitals::default()
    })
}
