//! The command line. `scripts/bench --help` is what people read; this says the same.

use std::path::PathBuf;

use bench_contract::Database;
use clap::{Args, Parser};

/// Measures outbox beside the least SQL that could work, the reference and its peers.
#[derive(Debug, Parser)]
pub(crate) enum Command {
    /// Measure.
    Run(Options),
    /// Be one of the processes that are measured.
    #[command(hide = true)]
    Work {
        /// Which system.
        system: String,
        /// What to do, as JSON.
        task: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Comma-separated: postgres, mariadb, mysql, sqlite
    #[arg(long, value_delimiter = ',', env = "OUTBOX_TEST_DATABASES")]
    pub(crate) db: Vec<String>,
    /// Comma-separated names of scenarios; default: those of --quick, or all of them with --full
    #[arg(long, value_delimiter = ',')]
    pub(crate) scenario: Vec<String>,
    /// Comma-separated names of systems; default: floor, reference, ours, and with --full the peers
    #[arg(long, value_delimiter = ',')]
    pub(crate) system: Vec<String>,
    /// Write the results there as JSON
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Write plots there as SVG
    #[arg(long)]
    pub(crate) plots: Option<PathBuf>,
    /// Short runs
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every scenario, long runs, and the peers
    #[arg(long)]
    pub(crate) full: bool,
    /// How many messages the floor reads at once
    #[arg(long, default_value_t = 1000)]
    pub(crate) floor_batch: i64,
    /// How often each system runs each scenario; the median counts
    #[arg(long)]
    pub(crate) runs: Option<usize>,
}

/// The name of a database on the command line and in the results.
pub(crate) fn name_of(database: Database) -> &'static str {
    match database {
        Database::Postgres => "postgres",
        Database::MariaDb => "mariadb",
        Database::MySql => "mysql",
        Database::Sqlite => "sqlite",
    }
}

/// The database of a name.
pub(crate) fn database_of(name: &str) -> Option<Database> {
    [
        Database::Postgres,
        Database::MariaDb,
        Database::MySql,
        Database::Sqlite,
    ]
    .into_iter()
    .find(|database| name_of(*database) == name)
}
