//! Whether the bed bites: it is run on an outbox with a defect, one after the other, and has to find
//! each. Compiled with `--cfg mutants` only.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use outbox::mutants::{Mutant, VARIABLE};
use testbed::Server;
use tokio::process::Command;

/// What the run is told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MutantOptions {
    /// One of them instead of all, by its name.
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    run: crate::Schedule,
}

/// Where the defect hurts.
fn database(mutant: Mutant) -> Server {
    match mutant {
        // PostgreSQL has a lock of its own for references, MariaDB has not.
        Mutant::ForeignKey => Server::MariaDb,
        _ => Server::Postgres,
    }
}

/// Whether each was found, and nothing where nothing is wrong.
pub(crate) async fn run(options: &MutantOptions) -> Result<bool> {
    let mut table = Vec::new();
    if options.only.is_none() {
        for db in [Server::Postgres, Server::MariaDb] {
            let found = found(options, None, db).await?;
            table.push(("none", db, found == Found::Nothing, found));
        }
    }
    let wanted = |mutant: &Mutant| {
        let only = options.only.as_deref();
        only.is_none_or(|only| only == mutant.name())
    };
    for mutant in Mutant::ALL.into_iter().filter(wanted) {
        let db = database(mutant);
        let found = found(options, Some(mutant), db).await?;
        let caught = matches!(found, Found::Broken(_));
        table.push((mutant.name(), db, caught, found));
    }
    println!("| mutant | database | caught by |\n|---|---|---|");
    for (name, db, right, found) in &table {
        let wrong = if *right { "" } else { ", which is wrong" };
        println!("| {name} | {db} | {found}{wrong} |");
    }
    Ok(table.iter().all(|(_, _, right, _)| *right))
}

/// What the bed found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// These invariants.
    Broken(String),
    /// It could not go on, and so cannot tell.
    Unknown,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nobody"),
            Self::Broken(invariants) => f.write_str(invariants),
            Self::Unknown => f.write_str("a bed that could not go on"),
        }
    }
}

async fn found(options: &MutantOptions, mutant: Option<Mutant>, db: Server) -> Result<Found> {
    let name = mutant.map_or(db.name(), Mutant::name);
    let reports = options.run.reports.join("mutants").join(name);
    let mut bed = Command::new(std::env::current_exe()?);
    bed.args(["run", "--db", db.name()])
        .args(["--seconds", &options.run.seconds.to_string()])
        .args(["--seed", &options.run.seed.unwrap_or(1).to_string()])
        .arg("--reports")
        .arg(&reports)
        .env(VARIABLE, mutant.map_or("", Mutant::name));
    // A report of an earlier run says nothing about this one.
    let _ = std::fs::remove_dir_all(&reports);
    let status = bed.status().await.context("run the bed")?;
    Ok(match status.code() {
        Some(0) => Found::Nothing,
        Some(1) => Found::Broken(broken(&reports.join(format!("{db}.json")))?),
        _ => Found::Unknown,
    })
}

/// The invariants that a report says were broken.
fn broken(report: &Path) -> Result<String> {
    let report = std::fs::read(report).with_context(|| format!("read {}", report.display()))?;
    let report: serde_json::Value = serde_json::from_slice(&report)?;
    let invariants = report["invariants"].as_array().into_iter().flatten();
    let broken = invariants
        .filter(|one| one["violations"] != 0)
        .filter_map(|one| one["about"].as_str()?.split(' ').next());
    Ok(broken.collect::<Vec<_>>().join(", "))
}
