//! Producers alone: what a transaction with messages in it costs. No worker of any system runs.

use anyhow::{Result, bail};
use bench_contract::{Production, Task};

use super::{Room, Sample, Unit};

/// More than anybody enqueues in the time there is.
pub(crate) const PLENTY: u64 = 1 << 25;

pub(crate) async fn run(room: &Room, name: &str, per_transaction: u64) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(16).await?;
    let sample = measure(room, name, per_transaction, &task).await?;
    let table = room.system.messages_table;
    let stored = fresh
        .number(&format!("SELECT COUNT(*) FROM {table}"))
        .await?;
    let produced = sample.more.get("produced").copied().unwrap_or(0.0);
    if stored as f64 != produced {
        bail!(
            "{} says it committed {produced}, but {stored} are there",
            room.system.name
        );
    }
    fresh.remove().await?;
    Ok(vec![sample])
}

/// Lets 8 producers run for the time there is.
pub(crate) async fn measure(
    room: &Room,
    name: &str,
    per_transaction: u64,
    task: &Task,
) -> Result<Sample> {
    let time = room.budget.enqueue;
    let mut process = room
        .spawn(&Task {
            production: Some(Production::flat_out(per_transaction, time)),
            capacity: PLENTY,
            ..task.clone()
        })
        .await?;
    process.go().await?;
    process
        .wait(time + room.budget.patience, |progress| {
            progress.production_done
        })
        .await?;
    let report = process.stop().await?;
    let rate = report.produced as f64 / (report.production_nanos as f64 / 1e9);
    let mut sample = Sample::new(name, rate, Unit::MessagesPerSecond);
    sample.more.insert("produced", report.produced as f64);
    room.note_errors(&mut sample, &[report]);
    Ok(sample)
}
