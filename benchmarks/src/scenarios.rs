//! What is measured: one file per kind of measurement. A scenario runs once, for one system, on fresh
//! databases, and returns what it saw.

mod drain;
mod end_to_end;
mod enqueue;
mod growth;
mod held_xmin;
mod idle;
mod latency;
mod memory;
mod million;
mod payload;
mod processes;
mod room;
mod take_over;

use std::collections::BTreeMap;

use anyhow::Result;
use bench_contract::{Database, Handler};

pub(crate) use room::Room;

use crate::systems::System;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    MessagesPerSecond,
    Milliseconds,
    Mebibytes,
    BytesPerMessage,
    TransactionsPerSecond,
    PercentOfACore,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MessagesPerSecond => "messages/s",
            Self::Milliseconds => "ms",
            Self::Mebibytes => "MiB",
            Self::BytesPerMessage => "B/message",
            Self::TransactionsPerSecond => "transactions/s",
            Self::PercentOfACore => "% of a core",
        }
    }
}

/// One figure of one run.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// The row it belongs to; most scenarios have one of their own name.
    pub(crate) row: String,
    pub(crate) value: f64,
    pub(crate) p99: Option<f64>,
    pub(crate) unit: Unit,
    /// Transactions of producers that failed.
    pub(crate) producer_errors: u64,
    /// Further figures, by name.
    pub(crate) more: BTreeMap<&'static str, f64>,
    /// Latencies in milliseconds, for the plots.
    pub(crate) distribution: Vec<f64>,
    /// What was not as it should be.
    pub(crate) remarks: Vec<String>,
}

impl Sample {
    pub(crate) fn new(row: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self {
            row: row.into(),
            value,
            p99: None,
            unit,
            producer_errors: 0,
            more: BTreeMap::new(),
            distribution: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    kind: Kind,
    /// Part of a quick run.
    pub(crate) quick: bool,
    only_on: Option<Database>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Enqueue(u64),
    Drain(Handler),
    EndToEnd,
    LatencyInProcess,
    LatencyCrossProcess,
    Processes(u16),
    Million,
    Partitions,
    Backlog,
    HeldXmin,
    Idle,
    Memory,
    LargePayload,
    TakeOver,
}

const fn named(name: &'static str, about: &'static str, kind: Kind) -> Scenario {
    Scenario {
        name,
        about,
        kind,
        quick: true,
        only_on: None,
    }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    named(
        "enqueue_1",
        "8 producers, 1 message per transaction",
        Kind::Enqueue(1),
    ),
    named(
        "enqueue_100",
        "8 producers, 100 messages per transaction",
        Kind::Enqueue(100),
    ),
    named(
        "drain_leased",
        "a backlog over 16 partitions",
        Kind::Drain(Handler::Leased),
    ),
    named(
        "drain_transactional",
        "a backlog over 16 partitions, batches inside the settling transaction",
        Kind::Drain(Handler::Transactional),
    ),
    named(
        "end_to_end",
        "8 producers and the handlers in one process",
        Kind::EndToEnd,
    ),
    named(
        "latency_in_process",
        "commit to handler at 300/s, and idle",
        Kind::LatencyInProcess,
    ),
    named(
        "latency_cross_process",
        "commit in one process to handler in another at 300/s, and idle",
        Kind::LatencyCrossProcess,
    ),
    named(
        "two_processes",
        "a backlog drained by two processes",
        Kind::Processes(2),
    ),
    full(
        "four_processes",
        "a backlog drained by four processes",
        Kind::Processes(4),
    ),
    on_postgres(
        "million",
        "a million through, 100 per transaction; then the database's size and the WAL written",
        Kind::Million,
    ),
    full(
        "partitions",
        "a backlog over 1, 4, 16 and 64 partitions",
        Kind::Partitions,
    ),
    full("backlog", "a backlog of 10 k, 100 k and 1 M", Kind::Backlog),
    on_postgres(
        "held_xmin",
        "end to end beside a forgotten transaction that has read, and one that has written",
        Kind::HeldXmin,
    ),
    on_postgres("idle", "64 partitions and nothing to do", Kind::Idle),
    full(
        "memory",
        "the process's peak while it drains a backlog of 1 M",
        Kind::Memory,
    ),
    full(
        "payload_8k",
        "enqueue_100 and drain_leased with 8 KiB per message",
        Kind::LargePayload,
    ),
    full(
        "take_over",
        "kill -9 under 300/s with a lease of 30 s: until all partitions go on",
        Kind::TakeOver,
    ),
];

const fn full(name: &'static str, about: &'static str, kind: Kind) -> Scenario {
    Scenario {
        quick: false,
        ..named(name, about, kind)
    }
}

const fn on_postgres(name: &'static str, about: &'static str, kind: Kind) -> Scenario {
    Scenario {
        only_on: Some(Database::Postgres),
        ..full(name, about, kind)
    }
}

impl Scenario {
    pub(crate) fn runs_on(&self, database: Database, system: &System) -> bool {
        // The floor takes nothing over and has nothing to do when idle; and beside a forgotten
        // transaction counts what a system keeps of its own rate.
        let own = matches!(self.kind, Kind::TakeOver | Kind::Idle | Kind::HeldXmin);
        let pointless = system.name == "floor" && own;
        let here = self.only_on.is_none_or(|only| only == database);
        system.works_on(database) && here && !pointless && (!system.is_peer() || self.for_peers())
    }

    /// Whether it asks for nothing but what every queue has.
    fn for_peers(&self) -> bool {
        let common = [
            Kind::Drain(Handler::Leased),
            Kind::EndToEnd,
            Kind::LatencyInProcess,
            Kind::LatencyCrossProcess,
            Kind::Million,
        ];
        matches!(self.kind, Kind::Enqueue(_)) || common.contains(&self.kind)
    }

    /// Runs it once.
    pub(crate) async fn run(&self, room: &Room) -> Result<Vec<Sample>> {
        match self.kind {
            Kind::Enqueue(per_transaction) => enqueue::run(room, self.name, per_transaction).await,
            Kind::Drain(handler) => drain::run(room, self.name, handler).await,
            Kind::EndToEnd => end_to_end::run(room, self.name).await,
            Kind::LatencyInProcess => latency::in_process(room, self.name).await,
            Kind::LatencyCrossProcess => latency::cross_process(room, self.name).await,
            Kind::Processes(count) => processes::run(room, self.name, count).await,
            Kind::Million => million::run(room, self.name).await,
            Kind::Partitions => growth::partitions(room).await,
            Kind::Backlog => growth::backlog(room).await,
            Kind::HeldXmin => held_xmin::run(room, self.name).await,
            Kind::Idle => idle::run(room).await,
            Kind::Memory => memory::run(room, self.name).await,
            Kind::LargePayload => payload::run(room, self.name).await,
            Kind::TakeOver => take_over::run(room, self.name).await,
        }
    }
}
