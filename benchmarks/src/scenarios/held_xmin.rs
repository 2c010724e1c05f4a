//! A forgotten open transaction beside a sustained run: it keeps PostgreSQL from removing dead rows.
//! What counts is the rate at the end, of the rate before the transaction was opened.

use std::time::Duration;

use anyhow::Result;
use bench_contract::{Handler, Production, Progress, Task};
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use super::enqueue::PLENTY;
use super::{Room, Sample, Unit};
use crate::process::Process;

const KINDS: [(&str, &str); 2] = [
    ("reading", "SELECT COUNT(*) FROM pg_class"),
    ("writing", "CREATE TABLE forgotten (nothing INTEGER)"),
];

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (kind, statement) in KINDS {
        let (fresh, task) = room.furnish(16).await?;
        let held = room.budget.held_xmin;
        // The rate is taken over a fifth of the time, before and at the end.
        let window = held / 5;
        let total = window * 2 + held;
        let mut process = room
            .spawn(&Task {
                handler: Handler::Leased,
                production: Some(Production::flat_out(1, total)),
                capacity: PLENTY,
                ..task
            })
            .await?;
        process.go().await?;
        // The first moments are nobody's pace yet.
        rate(&mut process, window / 2).await?;
        let before = rate(&mut process, window / 2).await?;
        let mut forgotten = PgConnection::connect(&fresh.url).await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
            .execute(&mut forgotten)
            .await?;
        sqlx::raw_sql(statement).execute(&mut forgotten).await?;
        rate(&mut process, held - window).await?;
        let after = rate(&mut process, window).await?;
        drop(forgotten);
        process
            .wait(room.budget.patience, Progress::all_arrived)
            .await?;
        let report = process.stop().await?;
        let row = format!("{name}_{kind}");
        let mut sample = Sample::new(row, after, Unit::MessagesPerSecond);
        sample.more.insert("before", before);
        sample.more.insert("kept", after / before);
        let produced = (report.produced, report.produced_id_sum);
        room.verify(&mut sample, produced, &[report]);
        samples.push(sample);
        fresh.remove().await?;
    }
    Ok(samples)
}

/// What is handled per second in the time that comes.
async fn rate(process: &mut Process, time: Duration) -> Result<f64> {
    let (began, before) = (Instant::now(), process.progress.handled);
    process.wait(time, |_| false).await?;
    let handled = process.progress.handled.saturating_sub(before);
    Ok(handled as f64 / began.elapsed().as_secs_f64())
}
