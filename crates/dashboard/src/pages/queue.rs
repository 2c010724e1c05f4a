//! A queue: its partitions as a map of where it is hot.

use askama::Template;
use axum::body::Bytes;
use axum::response::Response;
use outbox::{OutboxError, PartitionStats};

use super::overview::{Attention, Totals, charts, lately};
use super::{Frame, Path, Refused, Shown, Visit, rendered};
use crate::chart::Chart;
use crate::watch::MEMORY;
use crate::words;

/// How hot a cell can be.
const HOTTEST: u32 = 6;

/// A partition on the map.
struct Cell {
    partition: u32,
    /// 0 where nothing waits; one more for each power of ten.
    heat: u32,
    lag: String,
    failing: bool,
    paused: bool,
    /// All of it, for whoever points at it.
    told: String,
}

struct Row {
    partition: u32,
    pending: i64,
    oldest: String,
    attempts: u32,
    error: String,
    paused: bool,
    holder: String,
    dead_letters: u64,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    queue: String,
    totals: Totals,
    rate: String,
    paused_all: bool,
    attention: Vec<Attention>,
    charts: Vec<Chart>,
    cells: Vec<Cell>,
    rows: Vec<Row>,
}

fn heat(pending: i64) -> u32 {
    match pending {
        ..=0 => 0,
        pending => (pending.ilog10() + 1).min(HOTTEST),
    }
}

fn oldest(one: &PartitionStats) -> String {
    let age = one
        .head_created_at
        .map(|at| at.elapsed().unwrap_or_default());
    age.map_or("–".to_owned(), words::span)
}

fn cell(one: &PartitionStats) -> Cell {
    let mut told = vec![
        format!("partition {}", one.partition),
        words::plural(one.pending(), "message waits", "messages wait"),
    ];
    if one.head_created_at.is_some() {
        told.push(format!("the oldest for {}", oldest(one)));
    }
    if one.paused {
        told.push("paused".to_owned());
    }
    if one.attempts > 0 {
        let error = one.last_error.as_deref().unwrap_or("no reason was given");
        told.push(format!("failed {} times: {error}", one.attempts));
    }
    told.push(match &one.holder {
        Some(holder) => format!("held by {holder}"),
        None => "held by nobody".to_owned(),
    });
    Cell {
        partition: one.partition,
        heat: heat(one.pending()),
        lag: words::short(one.pending()),
        failing: one.attempts > 0,
        paused: one.paused,
        told: told.join(", "),
    }
}

pub(crate) async fn show(visit: Visit, Path(queue): Path<String>) -> Shown {
    visit.queue(&queue)?;
    let (watch, latest) = (&visit.office.watch, visit.office.watch.latest());
    let samples = watch.samples(Some(&queue), MEMORY);
    let partitions = latest.of_queue(&queue);
    let host_of = |holder: &str| {
        let mut processes = latest.processes.iter();
        let process = processes.find(|process| process.incarnation == holder);
        process.map_or_else(|| holder.to_owned(), |process| process.host.clone())
    };
    let row = |one: &PartitionStats| Row {
        partition: one.partition,
        pending: one.pending(),
        oldest: oldest(one),
        attempts: one.attempts,
        error: one.last_error.clone().unwrap_or_default(),
        paused: one.paused,
        holder: one.holder.as_deref().map(host_of).unwrap_or_default(),
        dead_letters: one.dead_letters,
    };
    let own = latest.attention.iter();
    let own = own.filter(|one| one.queue.as_deref() == Some(&*queue));
    let page = QueuePage {
        frame: visit.frame("queues", queue.clone()),
        totals: Totals::of(partitions.clone()),
        rate: lately(watch, Some(&queue)),
        paused_all: partitions.clone().all(|one| one.paused),
        attention: own.map(|one| Attention::new(one, &visit.base)).collect(),
        charts: charts(&samples),
        cells: partitions.clone().map(cell).collect(),
        rows: partitions.map(row).collect(),
        queue: queue.clone(),
    };
    Ok(rendered(&page))
}

pub(crate) async fn pause(visit: Visit, Path(queue): Path<String>, body: Bytes) -> Shown {
    set_paused(&visit, &queue, &body, true).await
}

pub(crate) async fn resume(visit: Visit, Path(queue): Path<String>, body: Bytes) -> Shown {
    set_paused(&visit, &queue, &body, false).await
}

async fn set_paused(
    visit: &Visit,
    queue: &str,
    body: &Bytes,
    paused: bool,
) -> Result<Response, Refused> {
    let form = visit.form(body)?;
    visit.queue(queue)?;
    let source = visit.source();
    let partition = match form.get("partition") {
        None => None,
        Some(text) => {
            let queues = source.queues();
            let partitions = queues.iter().find(|(name, _)| name == queue);
            let count = partitions.map_or(0, |(_, partitions)| partitions.count());
            let number = text.parse::<u32>().ok();
            let number = number.filter(|number| *number < u32::from(count));
            Some(number.ok_or_else(|| Refused::bad(format!("{queue} has no partition {text:?}")))?)
        }
    };
    let place = match partition {
        None => queue.to_owned(),
        Some(partition) => format!("{queue}/{partition}"),
    };
    let (action, done) = match paused {
        true => ("pause", "paused"),
        false => ("resume", "resumed"),
    };
    visit.record(action, &place, &form.text("reason")).await?;
    let set = async {
        source.set_paused(queue, partition, paused).await?;
        // Those that were paused by themselves go on with the others.
        let all = partition.is_none() && !paused;
        for one in source.stats().await?.into_iter().filter(|_| all) {
            if one.queue == queue && one.paused {
                source.set_paused(queue, Some(one.partition), false).await?;
            }
        }
        Ok::<_, OutboxError>(())
    };
    if let Err(error) = set.await {
        visit
            .record_outcome(&place, &format!("failed: {error}"))
            .await;
        return Err(error.into());
    }
    let latest = visit.look().await;
    let one = partition.and_then(|partition| latest.partition(queue, partition));
    let done = match one {
        Some(one) if !paused && one.paused => "still-paused",
        _ => done,
    };
    Ok(visit.go(&format!("/queues/{place}?done={done}")))
}

#[cfg(test)]
mod tests {
    use super::heat;

    #[test]
    fn it_gets_hotter_with_every_power_of_ten() {
        let heats = [-1, 0, 1, 9, 10, 99, 100, 99_999, 100_000, i64::MAX].map(heat);
        assert_eq!(heats, [0, 0, 1, 1, 2, 2, 3, 5, 6, 6]);
    }
}
