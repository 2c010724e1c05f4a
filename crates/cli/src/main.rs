//! The `outbox` command. One file per subcommand under `commands/`; this one only picks.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A transactional outbox for PostgreSQL, MySQL/MariaDB and SQLite.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(commands::demo::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => commands::demo::run(&args).await,
    };
    done.unwrap_or_else(|error| {
        eprintln!("outbox: {error}");
        ExitCode::FAILURE
    })
}
