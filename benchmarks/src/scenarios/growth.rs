//! Whether the cost of a message grows: with the number of partitions, and with the size of a backlog.

use anyhow::Result;
use bench_contract::{Handler, Task};

use super::{Room, Sample, drain};

pub(crate) async fn partitions(room: &Room) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for partitions in [1, 4, 16, 64] {
        let row = format!("partitions_{partitions}");
        samples.push(one(room, row, partitions, room.budget.backlog).await?);
    }
    Ok(with_ratios(samples))
}

pub(crate) async fn backlog(room: &Room) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (count, name) in [
        (10_000, "10k"),
        (100_000, "100k"),
        (room.budget.million, "1m"),
    ] {
        samples.push(one(room, format!("backlog_{name}"), 16, count).await?);
    }
    Ok(with_ratios(samples))
}

async fn one(room: &Room, row: String, partitions: u16, count: u64) -> Result<Sample> {
    let (fresh, task) = room.furnish(partitions).await?;
    let task = Task {
        handler: Handler::Leased,
        ..task
    };
    let sample = drain::measure(room, &row, count, 1, &task).await?;
    fresh.remove().await?;
    Ok(sample)
}

/// How each compares with the first.
fn with_ratios(mut samples: Vec<Sample>) -> Vec<Sample> {
    let smallest = samples.first().map_or(f64::NAN, |first| first.value);
    for sample in &mut samples {
        sample.more.insert("of_smallest", sample.value / smallest);
    }
    samples
}
