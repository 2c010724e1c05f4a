//! The most memory a process needs while it drains a large backlog.

use anyhow::Result;
use bench_contract::{Handler, Task};

use super::{Room, Sample, Unit, drain};

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(16).await?;
    let task = Task {
        handler: Handler::Leased,
        ..task
    };
    let drained = drain::measure(room, name, room.budget.million, 1, &task).await?;
    fresh.remove().await?;
    let peak = drained
        .more
        .get("peak_rss_mib")
        .copied()
        .unwrap_or(f64::NAN);
    Ok(vec![Sample {
        value: peak,
        unit: Unit::Mebibytes,
        ..drained
    }])
}
