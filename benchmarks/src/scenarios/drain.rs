//! A backlog, enqueued and committed before anybody looked at it, worked off by handlers that do
//! nothing. The clock runs from the start of the handlers to the last message.

use anyhow::Result;
use bench_contract::{Handler, Report, Task};

use super::room::backlog;
use super::{Room, Sample, Unit};
use crate::process::handled_together;

pub(crate) async fn run(room: &Room, name: &str, handler: Handler) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(16).await?;
    let sample = measure(
        room,
        name,
        room.budget.backlog,
        1,
        &Task { handler, ..task },
    )
    .await?;
    fresh.remove().await?;
    Ok(vec![sample])
}

/// Makes a backlog and lets some processes drain it together.
pub(crate) async fn measure(
    room: &Room,
    name: &str,
    count: u64,
    processes: u16,
    task: &Task,
) -> Result<Sample> {
    room.preload(
        &Task {
            handler: Handler::None,
            ..task.clone()
        },
        count,
    )
    .await?;
    let mut running = Vec::new();
    for own in 0..processes {
        let share = (own, processes);
        let task = Task {
            capacity: count,
            share,
            ..task.clone()
        };
        running.push(room.spawn(&task).await?);
    }
    for process in &mut running {
        process.go().await?;
    }
    handled_together(&mut running, count, room.budget.patience).await?;
    let mut reports = Vec::new();
    for process in running {
        reports.push(process.stop().await?);
    }
    let mut sample = Sample::new(name, rate(&reports), Unit::MessagesPerSecond);
    let rss = reports.iter().map(|report| report.peak_rss_kib).max();
    sample
        .more
        .insert("peak_rss_mib", rss.unwrap_or(0) as f64 / 1024.0);
    let cpu = reports.iter().map(|report| report.cpu_millis).sum::<u64>();
    sample.more.insert(
        "client_cpu_us_per_message",
        cpu as f64 * 1000.0 / count as f64,
    );
    room.verify(&mut sample, backlog(count), &reports);
    Ok(sample)
}

/// What all processes handled together, per second.
fn rate(reports: &[Report]) -> f64 {
    let handled = reports
        .iter()
        .map(|report| report.handled - report.duplicates)
        .sum::<u64>();
    let began = reports
        .iter()
        .map(|report| report.go_nanos)
        .min()
        .unwrap_or(0);
    let ended = reports
        .iter()
        .map(|report| report.last_handled_nanos)
        .max()
        .unwrap_or(0);
    handled as f64 / (ended.saturating_sub(began).max(1) as f64 / 1e9)
}
