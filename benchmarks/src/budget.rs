//! How much of everything: short runs for a first look, long ones for figures to quote.

use std::time::Duration;

use bench_contract::Database;

use crate::options::Options;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// How often each system runs each scenario.
    pub(crate) runs: usize,
    /// How long producers alone run.
    pub(crate) enqueue: Duration,
    /// Messages of a backlog that is drained.
    pub(crate) backlog: u64,
    /// How long producers and handlers run together.
    pub(crate) end_to_end: Duration,
    /// How long latencies are taken, idle and under load each.
    pub(crate) latency: Duration,
    /// How long to wait for what should come before giving up.
    pub(crate) patience: Duration,
    /// How long a transaction is held open and rates are taken beside it.
    pub(crate) held_xmin: Duration,
    /// Messages of the scenario `million`, and the largest backlog.
    pub(crate) million: u64,
    /// Messages the floor reads at once.
    pub(crate) floor_batch: i64,
}

impl Budget {
    pub(crate) fn new(options: &Options, database: Database) -> Self {
        // SQLite has one writer and MySQL no arrays: less takes as long there.
        let backlog = match database {
            Database::Postgres => 300_000,
            Database::MariaDb | Database::MySql | Database::Sqlite => 90_000,
        };
        let seconds = Duration::from_secs;
        let budget = if options.quick {
            Self {
                runs: 3,
                enqueue: Duration::from_millis(1500),
                backlog: backlog / 3,
                end_to_end: seconds(3),
                latency: Duration::from_millis(1500),
                patience: seconds(6),
                held_xmin: seconds(5),
                million: 100_000,
                floor_batch: 0,
            }
        } else if options.full {
            Self {
                runs: 5,
                enqueue: seconds(5),
                backlog,
                end_to_end: seconds(30),
                latency: seconds(10),
                patience: seconds(120),
                held_xmin: seconds(300),
                million: 1_000_000,
                floor_batch: 0,
            }
        } else {
            Self {
                runs: 3,
                enqueue: seconds(3),
                backlog,
                end_to_end: seconds(30),
                latency: seconds(5),
                patience: seconds(60),
                held_xmin: seconds(30),
                million: 1_000_000,
                floor_batch: 0,
            }
        };
        Self {
            runs: options.runs.unwrap_or(budget.runs).max(1),
            floor_batch: options.floor_batch.max(1),
            ..budget
        }
    }
}
