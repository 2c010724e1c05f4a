//! Whether the bed bites: it is run on an outbox with a defect, one after the other, and has to find
//! each. Compiled with `--cfg mutants` only.

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

/// Whether each was found.
pub(crate) async fn run(options: &MutantOptions) -> Result<bool> {
    let mut table = Vec::new();
    let wanted = |mutant: &Mutant| {
        let only = options.only.as_deref();
        only.is_none_or(|only| only == mutant.name())
    };
    for mutant in Mutant::ALL.into_iter().filter(wanted) {
        let db = database(mutant);
        let reports = options.run.reports.join("mutants").join(mutant.name());
        let mut bed = Command::new(std::env::current_exe()?);
        bed.args(["run", "--db", db.name()])
            .args(["--seconds", &options.run.seconds.to_string()])
            .args(["--seed", &options.run.seed.unwrap_or(1).to_string()])
            .arg("--reports")
            .arg(&reports)
            .env(VARIABLE, mutant.name());
        // A report of an earlier run says nothing about this one.
        let _ = std::fs::remove_dir_all(&reports);
        let status = bed.status().await.context("run the bed")?;
        let caught = match status.code() {
            Some(0) => None,
            Some(1) => Some(broken(&reports.join(format!("{db}.json")))?),
            _ => Some(format!("the bed could not go on: {status}")),
        };
        table.push((mutant, db, caught));
    }
    println!("| mutant | database | caught by |\n|---|---|---|");
    for (mutant, db, caught) in &table {
        let caught = caught.as_deref().unwrap_or("NOBODY");
        println!("| {} | {db} | {caught} |", mutant.name());
    }
    Ok(table.iter().all(|(_, _, caught)| caught.is_some()))
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
