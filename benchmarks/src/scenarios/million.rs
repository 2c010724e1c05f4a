//! A million messages through producers and handlers that run together, and what is left of them: the
//! size of the database, and the WAL that was written for each.

use std::time::Duration;

use anyhow::Result;
use bench_contract::{Handler, Production, Progress, Task};

use super::{Room, Sample, Unit};

/// How long a system has to clean up afterwards.
const CLEAN_UP: Duration = Duration::from_secs(5);
const SIZE: &str = "SELECT pg_database_size(current_database())";
const WAL: &str = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint";

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let count = room.budget.million;
    let (fresh, task) = room.furnish(16).await?;
    let (empty, wal) = (fresh.number(SIZE).await?, fresh.number(WAL).await?);
    let production = Production {
        producers: 8,
        per_transaction: 100,
        count: Some(count),
        millis: None,
        rate: None,
    };
    let mut process = room
        .spawn(&Task {
            handler: Handler::Leased,
            production: Some(production),
            capacity: count,
            ..task
        })
        .await?;
    process.go().await?;
    let through = |progress: &Progress| progress.production_done && progress.handled >= count;
    process.wait(room.budget.patience * 5, through).await?;
    tokio::time::sleep(CLEAN_UP).await;
    let (size, written) = (fresh.number(SIZE).await?, fresh.number(WAL).await? - wal);
    let report = process.stop().await?;
    fresh.remove().await?;

    let nanos = report.last_handled_nanos.saturating_sub(report.go_nanos);
    let rate = report.handled as f64 / (nanos as f64 / 1e9);
    let mut through = Sample::new(name, rate, Unit::MessagesPerSecond);
    let produced = (report.produced, report.produced_id_sum);
    room.verify(&mut through, produced, &[report]);
    let mebibytes = size as f64 / (1 << 20) as f64;
    let mut size = Sample::new(format!("{name}_size"), mebibytes, Unit::Mebibytes);
    size.more
        .insert("empty_mib", empty as f64 / (1 << 20) as f64);
    let each = written as f64 / count as f64;
    let wal = Sample::new(format!("{name}_wal"), each, Unit::BytesPerMessage);
    Ok(vec![through, size, wal])
}
