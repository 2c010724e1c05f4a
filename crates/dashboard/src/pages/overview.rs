//! What needs attention, and how it went in the last hour.

use std::time::{Duration, SystemTime};

use askama::Template;
use outbox::{Finding, PartitionStats, Severity};

use super::{Frame, Shown, Visit, rendered};
use crate::chart::{Chart, Shows};
use crate::watch::{MEMORY, QueueSample, Snapshot, Watch};
use crate::words;

/// Over how long a rate is taken.
const LATELY: Duration = Duration::from_secs(60);
/// How many findings are shown.
const MOST: usize = 20;

/// Something that needs attention.
pub(crate) struct Attention {
    pub(crate) problem: bool,
    pub(crate) check: &'static str,
    pub(crate) found: String,
    /// Every second part of it is what somebody would type.
    pub(crate) advice: Vec<String>,
    /// Where to look.
    pub(crate) link: Option<String>,
}

impl Attention {
    pub(crate) fn new(finding: &Finding, base: &str) -> Self {
        let link = match (&finding.queue, &*finding.partitions, finding.check) {
            (Some(queue), [partition], _) => Some(format!("{base}/queues/{queue}/{partition}")),
            (Some(queue), ..) => Some(format!("{base}/queues/{queue}")),
            (None, _, "dead letters") => Some(format!("{base}/dead-letters")),
            (None, _, "processes") => Some(format!("{base}/workers")),
            (None, ..) => None,
        };
        Self {
            problem: finding.severity == Severity::Problem,
            check: finding.check,
            found: finding.found.clone(),
            advice: finding.advice.split('`').map(str::to_owned).collect(),
            link,
        }
    }
}

/// A queue in numbers.
pub(crate) struct Totals {
    pub(crate) pending: i64,
    pub(crate) oldest: String,
    pub(crate) failing: i64,
    pub(crate) paused: i64,
    pub(crate) dead_letters: u64,
}

impl Totals {
    pub(crate) fn of<'a>(partitions: impl Iterator<Item = &'a PartitionStats> + Clone) -> Self {
        let count = |wanted: fn(&PartitionStats) -> bool| {
            partitions.clone().map(|one| i64::from(wanted(one))).sum()
        };
        let now = SystemTime::now();
        let oldest = partitions.clone().filter_map(|one| one.waits(now)).max();
        Self {
            pending: partitions.clone().map(PartitionStats::pending).sum(),
            oldest: oldest.map_or("–".to_owned(), words::span),
            failing: count(|one| one.attempts > 0),
            paused: count(|one| one.paused),
            dead_letters: partitions.map(|one| one.dead_letters).sum(),
        }
    }
}

struct QueueRow {
    name: String,
    partitions: usize,
    totals: Totals,
    rate: String,
    processes: usize,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    totals: Totals,
    rate: String,
    storage: String,
    attention: Vec<Attention>,
    more_attention: usize,
    charts: Vec<Chart>,
    since: Option<String>,
    queues: Vec<QueueRow>,
}

/// How many were settled per second, lately; of one queue, or of all together.
pub(crate) fn lately(watch: &Watch, queue: Option<&str>) -> String {
    let samples = watch.samples(queue, LATELY);
    let (Some((then, first)), Some((now, last))) = (samples.first(), samples.last()) else {
        return "–".to_owned();
    };
    let seconds = now.duration_since(*then).unwrap_or_default().as_secs_f64();
    if seconds <= 0.0 {
        return "–".to_owned();
    }
    words::rate((last.settled - first.settled).max(0) as f64 / seconds)
}

/// The charts of a queue, or of all.
pub(crate) fn charts(samples: &[(SystemTime, QueueSample)]) -> Vec<Chart> {
    vec![
        Chart::new(
            "Throughput",
            "messages per second",
            samples,
            &[("settled", Shows::Settled), ("arrived", Shows::Arrived)],
        ),
        Chart::new(
            "Waiting",
            "messages",
            samples,
            &[("waiting", Shows::Pending)],
        ),
        Chart::new("Oldest", "seconds", samples, &[("oldest", Shows::Oldest)]),
        Chart::new(
            "Failures",
            "attempts and dead letters per minute",
            samples,
            &[("failures", Shows::Failures)],
        ),
    ]
}

fn row(visit: &Visit, latest: &Snapshot, name: &str) -> QueueRow {
    let partitions = latest.of_queue(name);
    let handles = |queues: &[String]| queues.iter().any(|queue| queue == name);
    let processes = latest.processes.iter();
    let processes = processes.filter(|one| one.is_alive());
    QueueRow {
        name: name.to_owned(),
        partitions: partitions.clone().count(),
        totals: Totals::of(partitions),
        rate: lately(&visit.office.watch, Some(name)),
        processes: processes.filter(|one| handles(&one.queues)).count(),
    }
}

pub(crate) async fn show(visit: Visit) -> Shown {
    let (watch, latest) = (&visit.office.watch, visit.office.watch.latest());
    let samples = watch.samples(None, MEMORY);
    let findings = latest.attention.iter().take(MOST);
    let page = Overview {
        frame: visit.frame("overview", "Overview"),
        totals: Totals::of(latest.stats.iter()),
        rate: lately(watch, None),
        storage: latest.storage.map_or("–".to_owned(), words::bytes),
        attention: findings
            .map(|one| Attention::new(one, &visit.base))
            .collect(),
        more_attention: latest.attention.len().saturating_sub(MOST),
        charts: charts(&samples),
        since: watch.since().map(words::moment),
        queues: watch
            .queues()
            .iter()
            .map(|name| row(&visit, &latest, name))
            .collect(),
    };
    Ok(rendered(&page))
}
