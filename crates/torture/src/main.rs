//! Tries to make the outbox break its promises: real servers, real processes, faults between any two
//! steps, and a verdict from the outside. `scripts/torture --help` says how to run it.

mod bed;
mod clock;
mod dialect;
mod evidence;
mod faults;
mod figures;
mod ledger;
#[cfg(mutants)]
mod mutants;
mod plan;
mod processes;
mod producer;
mod prompt;
mod pulse;
mod report;
mod run;
mod script;
mod seat;
mod verdict;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use testbed::Server;

use crate::processes::Role;

#[derive(Debug, Parser)]
#[command(name = "outbox-torture", about, disable_help_subcommand = true)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tortures one database and prints what became of the promises.
    Run(RunOptions),
    /// Runs on outboxes that have a defect each, and prints who found it.
    #[cfg(mutants)]
    Mutants(mutants::MutantOptions),
    /// A process of the bed: not for people.
    #[command(hide = true)]
    Process(Role),
}

/// What a run is told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunOptions {
    /// Which database: postgres, mariadb, mysql or sqlite.
    #[arg(long, value_parser = server)]
    db: Server,
    #[command(flatten)]
    schedule: Schedule,
}

/// How long, which faults, and where it is told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Schedule {
    /// How long faults are made, in seconds; set-up and the search for losses come on top.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Repeats the schedule of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the reports go: DB.txt, DB.json and DB.html.
    #[arg(long, default_value = "target/torture")]
    reports: PathBuf,
}

impl Schedule {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn server(name: &str) -> Result<Server, String> {
    let known = Server::ALL.into_iter().find(|server| server.name() == name);
    known.ok_or_else(|| "one of postgres, mariadb, mysql, sqlite".to_owned())
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(options.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("outbox-torture: {error:#}");
            ExitCode::from(3)
        }
    }
}

/// Whether every promise was kept.
fn run(command: Command) -> Result<bool> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start tokio")?;
    runtime.block_on(async {
        match command {
            Command::Run(options) => run::run(&options).await,
            #[cfg(mutants)]
            Command::Mutants(options) => mutants::run(&options).await,
            Command::Process(role) => role.run().await.map(|()| true),
        }
    })
}
