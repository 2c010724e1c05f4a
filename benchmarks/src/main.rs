//! Measures outbox beside the least SQL that could work, the reference and its peers.
//!
//! Start at `run.rs`; what is measured is in `scenarios/`, who is measured in `systems/`. `scripts/bench`
//! builds everything, starts servers and calls this.

mod bars;
mod budget;
mod conditions;
mod fresh;
mod options;
mod plots;
mod process;
mod results;
mod run;
mod scenarios;
mod systems;
mod table;

use anyhow::Result;
use clap::Parser as _;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match options::Command::parse() {
        options::Command::Work { system, task } => systems::work(&system, &task).await,
        options::Command::Run(options) => run::run(&options).await,
    }
}
