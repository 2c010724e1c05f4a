//! The systems that are measured: their names, the program each runs in, and what each promises.

pub(crate) mod floor;
pub(crate) mod ours;
mod pool;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use bench_contract::Database;

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct System {
    /// As in the results.
    pub(crate) name: &'static str,
    /// The program its processes run; ours if `None`.
    program: Option<&'static str>,
    /// Where its messages are right after they were enqueued.
    pub(crate) messages_table: &'static str,
    /// The databases it works on.
    databases: &'static [Database],
    /// What it does not promise and we do; empty if it promises as much.
    pub(crate) lacks: &'static str,
    /// Whether messages of a partition come in order.
    pub(crate) ordered: bool,
}

const ALL: &[Database] = &[
    Database::Postgres,
    Database::MariaDb,
    Database::MySql,
    Database::Sqlite,
];

/// In the order they take turns.
pub(crate) const SYSTEMS: &[System] = &[
    System {
        name: "floor",
        program: None,
        messages_table: "floor_messages",
        databases: ALL,
        lacks: "no retries, leases, dead letters, take-over or vacuum; loses late commits",
        ordered: true,
    },
    System {
        name: "reference",
        program: Some("outbox-bench-reference"),
        messages_table: "modkit_outbox_incoming",
        databases: ALL,
        lacks: "",
        ordered: true,
    },
    System {
        name: "ours",
        program: None,
        messages_table: "outbox_messages",
        databases: ALL,
        lacks: "",
        ordered: true,
    },
    System {
        messages_table: "pgmq.q_bench",
        lacks: "no order, no partitions, a fixed visibility timeout",
        ..peer("pgmq")
    },
    System {
        messages_table: "graphile_worker._private_jobs",
        lacks: "no order (named queues have it, one job at a time)",
        ..peer("graphile_worker")
    },
    System {
        messages_table: "outbox_events",
        lacks: "no order across retries, no partitions",
        ..peer("oxide-outbox")
    },
    System {
        messages_table: "pgq.event_1",
        lacks: "no partitions, no acks of single messages, one consumer; a batch waits for its tick",
        ..peer("pgq")
    },
];

/// A queue on PostgreSQL that somebody could pick instead.
const fn peer(name: &'static str) -> System {
    System {
        name,
        program: Some("outbox-bench-peers"),
        messages_table: "",
        databases: &[Database::Postgres],
        lacks: "",
        ordered: false,
    }
}

impl System {
    pub(crate) fn works_on(&self, database: Database) -> bool {
        self.databases.contains(&database)
    }

    /// Those the benchmark always shows, as opposed to the peers.
    pub(crate) fn is_peer(&self) -> bool {
        !["floor", "reference", "ours"].contains(&self.name)
    }

    /// The program and its first arguments; the task follows.
    pub(crate) fn command(&self) -> Result<(PathBuf, Vec<String>)> {
        let own = std::env::current_exe().context("where this program is")?;
        let Some(program) = self.program else {
            return Ok((own, vec!["work".to_owned(), self.name.to_owned()]));
        };
        let beside = own.with_file_name(program);
        if !beside.is_file() {
            bail!("{} is not built; scripts/bench builds it", beside.display());
        }
        Ok((beside, vec![self.name.to_owned()]))
    }
}

/// Runs one of the systems that live in this program.
pub(crate) async fn work(name: &str, task: &str) -> Result<()> {
    let database = serde_json::from_str::<bench_contract::Task>(task)?.database;
    match (name, database) {
        ("floor", Database::Postgres) => {
            bench_contract::main::<floor::Floor<floor::Postgres>>(task).await
        }
        ("floor", Database::MariaDb | Database::MySql) => {
            bench_contract::main::<floor::Floor<floor::MySql>>(task).await
        }
        ("floor", Database::Sqlite) => {
            bench_contract::main::<floor::Floor<floor::Sqlite>>(task).await
        }
        ("ours", Database::Postgres) => {
            bench_contract::main::<ours::Ours<sqlx::Postgres>>(task).await
        }
        ("ours", Database::MariaDb | Database::MySql) => {
            bench_contract::main::<ours::Ours<sqlx::MySql>>(task).await
        }
        ("ours", Database::Sqlite) => bench_contract::main::<ours::Ours<sqlx::Sqlite>>(task).await,
        _ => bail!("unknown system {name:?}"),
    }
}
