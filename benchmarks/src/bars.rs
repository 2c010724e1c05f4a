//! What is asked of us: the bars, and whether a row is at or above its own.

use bench_contract::Database;

use crate::results::{Results, Row};

/// A bar.
#[derive(Debug, Clone, Copy)]
enum Bar {
    /// At least so much of the floor.
    OfFloor(f64),
    /// At least so many times the reference.
    OfReference(f64),
    /// Both of them.
    OfBoth(f64, f64),
    /// p50 and p99, in milliseconds, at most.
    Latency(f64, f64),
    /// p99 in milliseconds, at most.
    P99(f64),
    /// A further figure, at least.
    AtLeast(&'static str, f64),
    /// The figure itself, at most.
    AtMost(f64),
}

fn bars(database: Database, row: &str) -> Vec<Bar> {
    use Bar::{AtLeast, AtMost, Latency, OfBoth, OfFloor, OfReference, P99};
    let bar = match (database, row) {
        (Database::Postgres, "enqueue_1") => OfFloor(0.92),
        (Database::Postgres, "enqueue_100") => OfFloor(0.60),
        (Database::Postgres, "drain_leased") => OfBoth(0.45, 3.0),
        (Database::Postgres, "drain_transactional") => OfReference(2.0),
        (Database::Postgres, "end_to_end") => OfReference(1.4),
        (Database::Postgres, "latency_in_process" | "latency_in_process_idle") => Latency(1.0, 4.0),
        (Database::Postgres, "latency_cross_process" | "latency_cross_process_idle") => {
            Latency(5.0, 25.0)
        }
        (Database::Postgres, "two_processes" | "four_processes") => AtLeast("of_one_process", 0.9),
        (Database::Postgres, "held_xmin_reading" | "held_xmin_writing") => AtLeast("kept", 0.9),
        (Database::Postgres, "million_size") => AtMost(64.0),
        (Database::Postgres, "million_wal") => AtMost(900.0),
        (Database::Postgres, "idle_queries") => AtMost(20.0),
        (Database::Postgres, "idle_cpu") => AtMost(1.0),
        (Database::Postgres, "take_over") => AtMost(32_000.0),
        (Database::Postgres, "partitions_64" | "backlog_1m") => AtLeast("of_smallest", 1.0 / 1.5),
        (Database::MariaDb | Database::MySql, "enqueue_1") => OfFloor(0.75),
        (Database::MariaDb | Database::MySql, "enqueue_100") => OfFloor(0.6),
        (Database::MariaDb | Database::MySql, "drain_leased") => OfReference(2.5),
        (Database::MariaDb | Database::MySql, "end_to_end") => OfReference(1.4),
        (Database::Sqlite, "enqueue_1" | "enqueue_100") => OfFloor(0.8),
        (Database::Sqlite, "drain_leased") => OfReference(4.0),
        (Database::Sqlite, "end_to_end") => OfReference(2.0),
        (_, "latency_cross_process" | "latency_cross_process_idle") => P99(100.0),
        _ => return Vec::new(),
    };
    vec![bar]
}

/// What a bar says and whether it is reached; `None` when it cannot be told.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) bar: String,
    pub(crate) reached: Option<bool>,
}

/// Judges a row of ours. Errors to producers miss every bar.
pub(crate) fn judge(results: &Results, row: &Row) -> Option<Verdict> {
    let bar = *bars(row.database, &row.scenario).first()?;
    let at_least = |value: Option<f64>, bar: f64| value.map(|value| value >= bar);
    let at_most = |value: Option<f64>, bar: f64| value.map(|value| value <= bar);
    let (floor, reference) = (results.ratio(row, "floor"), results.ratio(row, "reference"));
    let (bar, reached) = match bar {
        Bar::OfFloor(bar) => (format!("{bar} of floor"), at_least(floor, bar)),
        Bar::OfReference(bar) => (format!("{bar} × reference"), at_least(reference, bar)),
        Bar::OfBoth(of, times) => (
            format!("{of} of floor, {times} × reference"),
            at_least(floor, of)
                .zip(at_least(reference, times))
                .map(|(one, two)| one && two),
        ),
        Bar::Latency(p50, p99) => (
            format!("p50 {p50} ms, p99 {p99} ms"),
            at_most(row.median(), p50)
                .zip(at_most(row.p99(), p99))
                .map(|(one, two)| one && two),
        ),
        Bar::P99(p99) => (format!("p99 {p99} ms"), at_most(row.p99(), p99)),
        Bar::AtLeast(name, bar) => {
            let value = row.more().get(name).copied();
            (
                format!("{bar:.2} {}", name.replace('_', " ")),
                at_least(value, bar),
            )
        }
        Bar::AtMost(bar) => (
            format!("at most {bar} {}", row.unit().name()),
            at_most(row.median(), bar),
        ),
    };
    let clean = row.producer_errors() == 0;
    Some(Verdict {
        bar,
        reached: reached.map(|reached| reached && clean),
    })
}
