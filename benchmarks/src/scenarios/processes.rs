//! Several processes on one queue, beside one process on the same backlog in the same run.

use anyhow::Result;
use bench_contract::{Handler, Task};

use super::{Room, Sample, drain};

pub(crate) async fn run(room: &Room, name: &str, count: u16) -> Result<Vec<Sample>> {
    let mut figures = Vec::new();
    for processes in [1, count] {
        let (fresh, task) = room.furnish(16).await?;
        let task = Task {
            handler: Handler::Leased,
            ..task
        };
        figures.push(drain::measure(room, name, room.budget.backlog, processes, &task).await?);
        fresh.remove().await?;
    }
    let alone = figures.first().map_or(f64::NAN, |alone| alone.value);
    let mut together = figures
        .pop()
        .unwrap_or_else(|| unreachable!("two were measured"));
    together.more.insert("alone", alone);
    together
        .more
        .insert("of_one_process", together.value / alone);
    Ok(vec![together])
}
