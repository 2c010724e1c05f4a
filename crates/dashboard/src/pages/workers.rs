//! Processes: where they run, what they hold, and when they last said that they are alive.

use askama::Template;
use outbox::PartitionStats;

use super::{Frame, Shown, Visit, rendered};
use crate::words;

struct Held {
    queue: String,
    partitions: Vec<(u32, bool)>,
    /// When the first of the leases runs out.
    lease: String,
}

struct Row {
    host: String,
    incarnation: String,
    version: String,
    started: String,
    seen: String,
    alive: bool,
    queues: Vec<String>,
    held: Vec<Held>,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    rows: Vec<Row>,
    /// Partitions of queues with work that nobody holds.
    free: Vec<(String, Vec<u32>)>,
    versions: usize,
}

fn held(stats: &[PartitionStats], holder: &str) -> Vec<Held> {
    let own: Vec<_> = stats
        .iter()
        .filter(|one| one.holder.as_deref() == Some(holder))
        .collect();
    own.chunk_by(|one, next| one.queue == next.queue)
        .map(|partitions| Held {
            queue: partitions[0].queue.clone(),
            partitions: partitions
                .iter()
                .map(|one| (one.partition, one.attempts > 0))
                .collect(),
            lease: partitions
                .iter()
                .filter_map(|one| one.lease_until)
                .min()
                .map(words::ago)
                .unwrap_or_default(),
        })
        .collect()
}

pub(crate) async fn show(visit: Visit) -> Shown {
    let latest = visit.office.watch.latest();
    let rows: Vec<_> = latest
        .processes
        .iter()
        .map(|process| Row {
            host: process.host.clone(),
            incarnation: process.incarnation.clone(),
            version: process.version.clone(),
            started: words::ago(process.started_at),
            seen: format!("{} ago", words::span(process.silent_for())),
            alive: process.is_alive(),
            queues: process.queues.clone(),
            held: held(&latest.stats, &process.incarnation),
        })
        .collect();
    let free: Vec<_> = latest
        .stats
        .iter()
        .filter(|one| one.holder.is_none() && one.pending() > 0 && !one.paused)
        .collect();
    let free = free.chunk_by(|one, next| one.queue == next.queue);
    let mut versions: Vec<_> = rows.iter().map(|row| &row.version).collect();
    versions.sort();
    versions.dedup();
    let page = WorkersPage {
        frame: visit.frame("workers", "Workers"),
        free: free
            .map(|partitions| {
                let numbers = partitions.iter().map(|one| one.partition).collect();
                (partitions[0].queue.clone(), numbers)
            })
            .collect(),
        versions: versions.len(),
        rows,
    };
    Ok(rendered(&page))
}
