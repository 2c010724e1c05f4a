//! What a process with 64 partitions costs while there is nothing to do: transactions on the server,
//! and processor time of the process and of the server.

use std::fs::read_to_string;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bench_contract::{Handler, Task};
use tokio::time::Instant;

use super::{Room, Sample, Unit};
use crate::fresh::Fresh;

/// Start-up is over by then, and every connection of the server has reported what it did in it: one that
/// has nothing to do takes 10 s for that.
const WARM_UP: Duration = Duration::from_secs(12);
const WATCHED: Duration = Duration::from_secs(20);
/// The kernel counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) async fn run(room: &Room) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(64).await?;
    let mut process = room
        .spawn(&Task {
            handler: Handler::Leased,
            ..task
        })
        .await?;
    process.go().await?;
    let id = process.id().context("its id")?;
    let server = server(&fresh).await?;
    process.wait(WARM_UP, |_| false).await?;
    let began = Instant::now();
    let before = (
        transactions(&fresh).await?,
        ticks(id)?,
        ticks_of_children(server)?,
    );
    process.wait(WATCHED, |_| false).await?;
    let after = (
        transactions(&fresh).await?,
        ticks(id)?,
        ticks_of_children(server)?,
    );
    let seconds = began.elapsed().as_secs_f64();
    process.stop().await?;
    fresh.remove().await?;
    let per_second = |before: f64, after: f64| (after - before).max(0.0) / seconds;
    let percent = |before, after| per_second(before, after) / TICKS_PER_SECOND * 100.0;
    Ok(vec![
        Sample::new(
            "idle_queries",
            per_second(before.0, after.0),
            Unit::TransactionsPerSecond,
        ),
        Sample::new("idle_cpu", percent(before.1, after.1), Unit::PercentOfACore),
        Sample::new(
            "idle_server_cpu",
            percent(before.2, after.2),
            Unit::PercentOfACore,
        ),
    ])
}

async fn transactions(fresh: &Fresh) -> Result<f64> {
    let count = "SELECT xact_commit + xact_rollback FROM pg_stat_database
                 WHERE datname = current_database()";
    Ok(fresh.number(count).await? as f64)
}

/// The process all servers' processes are children of.
async fn server(fresh: &Fresh) -> Result<u32> {
    let checkpointer =
        "SELECT pid::bigint FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
    let checkpointer = fresh.number(checkpointer).await?;
    let stat = read_to_string(format!("/proc/{checkpointer}/stat")).context("a local server")?;
    let parent = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(1));
    parent
        .and_then(|parent| parent.parse().ok())
        .context("the server's process")
}

/// Processor time of a process so far.
fn ticks(id: u32) -> Result<f64> {
    let stat = read_to_string(format!("/proc/{id}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    Ok(field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0))
}

/// Processor time of all children of a process that are still there.
fn ticks_of_children(parent: u32) -> Result<f64> {
    let children = read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let children = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok());
    Ok(children.filter_map(|child| ticks(child).ok()).sum())
}
