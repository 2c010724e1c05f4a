//! What the outbox counts and measures, through the [`metrics`](https://docs.rs/metrics) facade. Whoever
//! installs a recorder **before** [`start`](crate::OutboxBuilder::start) gets it; without one it costs next to
//! nothing.
//!
//! Names, units and labels are promised like any other part of the interface; [`ALL`] lists them. Labels are
//! few: `origin` is what the outbox [is called](crate::OutboxBuilder::origin), `queue` one of its registered
//! queues, `worker` the kind of a background worker. A partition is never one.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use metrics::{Counter, Gauge, Histogram, Label, Unit};

use crate::stats::PartitionStats;

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only grows, from the start of the process on.
    Counter,
    /// The last that was seen.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A metric of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// What it is called.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it counts or measures.
    pub unit: Unit,
    /// By what it is told apart.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const ORIGIN: &[&str] = &["origin"];
const QUEUE: &[&str] = &["origin", "queue"];
const WORKER: &[&str] = &["origin", "worker"];

macro_rules! metrics {
    ($($constant:ident = $name:literal: $kind:ident of $unit:ident by $labels:expr, $help:literal;)*) => {
        $(const $constant: &str = $name;)*

        /// Every metric there is.
        pub const ALL: &[Metric] = &[
            $(Metric {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: $labels,
                help: $help,
            },)*
        ];
    };
}

metrics! {
    ENQUEUED = "outbox_enqueued_total": Counter of Count by QUEUE,
        "messages written by this process, in transactions that may yet have been rolled back";
    SEQUENCED = "outbox_sequenced_total": Counter of Count by QUEUE,
        "committed messages that this process gave their sequence number";
    DELIVERED = "outbox_delivered_total": Counter of Count by QUEUE,
        "messages that a handler of this process accepted";
    RETRIED = "outbox_retried_total": Counter of Count by QUEUE,
        "attempts that failed and are made again";
    REJECTED = "outbox_rejected_total": Counter of Count by QUEUE,
        "messages that a handler of this process rejected";
    DEAD_LETTERED = "outbox_dead_lettered_total": Counter of Count by QUEUE,
        "messages that became dead letters: rejected, tried too often, or skipped";
    REDELIVERED = "outbox_redelivered_total": Counter of Count by QUEUE,
        "deliveries of a message that had been tried before";
    HANDLER = "outbox_handler_duration_seconds": Histogram of Seconds by QUEUE,
        "how long a handler took for a batch";
    LATENCY = "outbox_delivery_latency_seconds": Histogram of Seconds by QUEUE,
        "from the enqueue, by the database's clock, to the end of the handler, by that of this machine";
    LAG_MESSAGES = "outbox_lag_messages": Gauge of Count by QUEUE,
        "sequenced messages that are not settled, paused ones among them";
    LAG_SECONDS = "outbox_lag_seconds": Gauge of Seconds by QUEUE,
        "the age of the oldest message that is not settled, where nothing is paused";
    HELD = "outbox_partitions_held": Gauge of Count by QUEUE,
        "partitions that this process holds";
    FAILING = "outbox_partitions_failing": Gauge of Count by QUEUE,
        "partitions whose first message has failed at least once";
    PAUSED = "outbox_partitions_paused": Gauge of Count by QUEUE,
        "partitions that somebody paused";
    DEAD_LETTERS = "outbox_dead_letters": Gauge of Count by QUEUE,
        "dead letters that wait for a decision";
    LEASES_LOST = "outbox_leases_lost_total": Counter of Count by QUEUE,
        "leases that this process lost to another one, or to the clock";
    TAKEOVERS = "outbox_takeovers_total": Counter of Count by QUEUE,
        "partitions taken over from a process that had not given them back";
    SEQUENCER = "outbox_sequencer_duration_seconds": Histogram of Seconds by ORIGIN,
        "how long a step of sequencing took";
    SWEPT = "outbox_swept_total": Counter of Count by ORIGIN,
        "settled messages that this process removed";
    VACUUM = "outbox_vacuum_duration_seconds": Histogram of Seconds by ORIGIN,
        "how long removing the settled messages of a partition took";
    RECONCILED = "outbox_reconciled_total": Counter of Count by ORIGIN,
        "rounds in which every worker was told to look, whatever the signals said";
    WAKE_UP = "outbox_wake_up_seconds": Histogram of Seconds by WORKER,
        "from the announcement of work to the worker that takes it up";
    ERRORS = "outbox_worker_errors_total": Counter of Count by WORKER,
        "executions of a background worker that failed, most often for want of the database";
    POOL_WAIT = "outbox_pool_wait_seconds": Histogram of Seconds by &[],
        "how long a worker waited for a connection of the pool";
    STORAGE = "outbox_storage_bytes": Gauge of Bytes by ORIGIN,
        "the room that the outbox's tables take in the database; of the whole file on SQLite";
}

/// Tells the recorder what everything is.
pub(crate) fn describe() {
    for metric in ALL {
        let (name, unit, help) = (metric.name, metric.unit, metric.help);
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
            Kind::Histogram => metrics::describe_histogram!(name, unit, help),
        }
    }
}

/// A worker got a connection of the pool.
pub(crate) fn waited_for_pool(since: Instant) {
    metrics::histogram!(POOL_WAIT).record(since.elapsed());
}

/// What is counted of one queue.
#[derive(Debug)]
pub(crate) struct QueueMeters {
    pub(crate) enqueued: Counter,
    pub(crate) sequenced: Counter,
    pub(crate) delivered: Counter,
    pub(crate) retried: Counter,
    pub(crate) rejected: Counter,
    pub(crate) dead_lettered: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) takeovers: Counter,
    pub(crate) handler: Histogram,
    pub(crate) latency: Histogram,
    lag_messages: Gauge,
    lag_seconds: Gauge,
    held: Gauge,
    failing: Gauge,
    paused: Gauge,
    dead_letters: Gauge,
}

impl QueueMeters {
    pub(crate) fn new(origin: &Arc<str>, queue: &Arc<str>) -> Self {
        let labels = || {
            vec![
                Label::new("origin", Arc::clone(origin)),
                Label::new("queue", Arc::clone(queue)),
            ]
        };
        let counter = |name: &'static str| metrics::counter!(name, labels());
        let gauge = |name: &'static str| metrics::gauge!(name, labels());
        let histogram = |name: &'static str| metrics::histogram!(name, labels());
        Self {
            enqueued: counter(ENQUEUED),
            sequenced: counter(SEQUENCED),
            delivered: counter(DELIVERED),
            retried: counter(RETRIED),
            rejected: counter(REJECTED),
            dead_lettered: counter(DEAD_LETTERED),
            redelivered: counter(REDELIVERED),
            leases_lost: counter(LEASES_LOST),
            takeovers: counter(TAKEOVERS),
            handler: histogram(HANDLER),
            latency: histogram(LATENCY),
            lag_messages: gauge(LAG_MESSAGES),
            lag_seconds: gauge(LAG_SECONDS),
            held: gauge(HELD),
            failing: gauge(FAILING),
            paused: gauge(PAUSED),
            dead_letters: gauge(DEAD_LETTERS),
        }
    }

    /// Says how the queue is doing, by the state of its partitions.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a gauge is a float, whatever it shows"
    )]
    pub(crate) fn show(
        &self,
        partitions: &[&PartitionStats],
        incarnation: &str,
        staffed: bool,
        now: SystemTime,
    ) {
        let queue = QueueStats::of(partitions, incarnation, now);
        self.lag_messages.set(queue.pending as f64);
        self.lag_seconds.set(queue.oldest.as_secs_f64());
        // One without workers holds nothing, and may share its process with one that does.
        if staffed {
            self.held.set(f64::from(queue.held_here));
        }
        self.failing.set(f64::from(queue.failing));
        self.paused.set(f64::from(queue.paused));
        self.dead_letters.set(queue.dead_letters as f64);
    }
}

/// What is counted of a whole outbox.
#[derive(Debug)]
pub(crate) struct Meters {
    origin: Label,
    pub(crate) sequencer: Histogram,
    pub(crate) swept: Counter,
    pub(crate) vacuum: Histogram,
    pub(crate) reconciled: Counter,
    pub(crate) sequencer_woken: Histogram,
    pub(crate) processor_woken: Histogram,
    storage: Gauge,
}

impl Meters {
    pub(crate) fn new(origin: &Arc<str>) -> Self {
        let origin = Label::new("origin", Arc::clone(origin));
        let labels = || vec![origin.clone()];
        let of_worker = |worker: &'static str| vec![origin.clone(), Label::new("worker", worker)];
        Self {
            sequencer: metrics::histogram!(SEQUENCER, labels()),
            swept: metrics::counter!(SWEPT, labels()),
            vacuum: metrics::histogram!(VACUUM, labels()),
            reconciled: metrics::counter!(RECONCILED, labels()),
            sequencer_woken: metrics::histogram!(WAKE_UP, of_worker("sequencer")),
            processor_woken: metrics::histogram!(WAKE_UP, of_worker("processor")),
            storage: metrics::gauge!(STORAGE, labels()),
            origin,
        }
    }

    /// Counts the failures of a worker.
    pub(crate) fn errors(&self, worker: &'static str) -> Errors {
        let labels = vec![self.origin.clone(), Label::new("worker", worker)];
        Errors(metrics::counter!(ERRORS, labels))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a gauge is a float, whatever it shows"
    )]
    pub(crate) fn takes_room(&self, bytes: u64) {
        self.storage.set(bytes as f64);
    }
}

/// Counts the executions of a worker that failed.
#[derive(Debug)]
pub(crate) struct Errors(Counter);

impl<P> taskward::WorkerListener<P> for Errors {
    fn on_error(&self, _: Duration, _: &str, _: u32, _: Duration) {
        self.0.increment(1);
    }
}

/// The partitions of a queue, added up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct QueueStats {
    pub(crate) pending: i64,
    /// The age of the oldest head that is not paused, by this machine's clock.
    pub(crate) oldest: Duration,
    /// Partitions that this process holds.
    pub(crate) held_here: u32,
    /// Partitions whose head has failed at least once.
    pub(crate) failing: u32,
    pub(crate) paused: u32,
    pub(crate) dead_letters: u64,
}

impl QueueStats {
    pub(crate) fn of(partitions: &[&PartitionStats], incarnation: &str, now: SystemTime) -> Self {
        let mut queue = Self::default();
        for partition in partitions {
            queue.pending += partition.pending();
            queue.oldest = queue.oldest.max(partition.waits(now).unwrap_or_default());
            queue.held_here += u32::from(partition.holder.as_deref() == Some(incarnation));
            queue.failing += u32::from(partition.attempts > 0);
            queue.paused += u32::from(partition.paused);
            queue.dead_letters += partition.dead_letters;
        }
        queue
    }
}
