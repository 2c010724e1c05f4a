//! The `outbox` command. One file per subcommand under `commands/`; this one only picks.

mod ask;
mod commands;
mod config;
mod connection;
mod failure;
mod format;
mod given;
mod output;
mod server;
mod signals;
mod telemetry;

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::runtime::Runtime;

use crate::connection::Target;
use crate::failure::Failure;
use crate::output::Output;

/// A transactional outbox for PostgreSQL, MySQL/MariaDB and SQLite.
#[derive(Debug, Parser)]
#[command(
    name = "outbox",
    version,
    after_help = "Examples:
  outbox demo                                               what it is about, in a quarter of a minute
  outbox migrate up --database-url postgres://localhost/shop
  outbox status --watch
  outbox relay --init                                       a configuration to begin with

Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 the database cannot be reached or
refuses, 4 there is no outbox in it or one of another version, 5 what was asked for does not exist or is
not in a state for that, 6 a broker cannot be reached or refuses."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    context: Context,
}

/// What all commands have in common.
#[derive(Debug, clap::Args)]
struct Context {
    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    /// Whether to use colours; NO_COLOR in the environment is honoured too
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        global = true,
        help_heading = "Output"
    )]
    color: ColorChoice,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(commands::demo::Args),
    /// A process of the demo
    #[command(hide = true)]
    DemoWorker,
    Migrate(commands::migrate::Args),
    Status(commands::status::Args),
    Top(commands::top::Args),
    Enqueue(commands::enqueue::Args),
    Peek(commands::peek::Args),
    DeadLetters(commands::dead_letters::Args),
    /// Stop deliveries of a queue or a partition
    Pause(commands::pause::Args),
    /// Let deliveries of a queue or a partition go on
    Resume(commands::pause::Args),
    Skip(commands::skip::Args),
    Relay(commands::relay::Args),
    Dashboard(commands::dashboard::Args),
    Repair(commands::repair::Args),
    Doctor(commands::doctor::Args),
    Audit(commands::audit::Args),
    Bench(commands::bench::Args),
    Completions(commands::completions::Args),
    Man(commands::completions::ManArgs),
}

/// How long what blocks a thread, such as a pipe that nobody reads, may keep the process from ending.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is behind a lock is whole at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> ExitCode {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(error).report(),
    };
    let code = runtime.block_on(run());
    runtime.shutdown_timeout(LAST_WORDS);
    code
}

/// What the command line and the environment say. A variable that is empty says nothing.
fn arguments() -> Cli {
    let command = Cli::command().mut_args(|option| {
        let variable = option.get_env().and_then(std::env::var_os);
        match variable.is_some_and(|value| value.is_empty()) {
            true => option.env(None::<&'static str>),
            false => option,
        }
    });
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

async fn run() -> ExitCode {
    let Cli { command, context } = arguments();
    match context.color {
        ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
        ColorChoice::Auto => {}
    }
    let mut output = Output::new(context.json);
    let (context, output) = (&context, &mut output);
    let Some(command) = command else {
        // Not `arg_required_else_help`: a URL in the environment is an argument too.
        let _ = Cli::command().print_help();
        return ExitCode::from(2);
    };
    let done = match &command {
        Command::Demo(args) => commands::demo::run(args, context, output).await,
        Command::DemoWorker => commands::demo::worker::run(context).await,
        Command::Migrate(args) => commands::migrate::run(args, context, output).await,
        Command::Status(args) => commands::status::run(args, context, output).await,
        Command::Top(args) => commands::top::run(args, context).await,
        Command::Enqueue(args) => commands::enqueue::run(args, context, output).await,
        Command::Peek(args) => commands::peek::run(args, context, output).await,
        Command::DeadLetters(args) => commands::dead_letters::run(args, context, output).await,
        Command::Pause(args) => commands::pause::run(args, true, context, output).await,
        Command::Resume(args) => commands::pause::run(args, false, context, output).await,
        Command::Skip(args) => commands::skip::run(args, context, output).await,
        Command::Dashboard(args) => commands::dashboard::run(args, context, output).await,
        Command::Relay(args) => commands::relay::run(args, context, output).await,
        Command::Repair(args) => commands::repair::run(args, context, output).await,
        Command::Doctor(_) => commands::doctor::run(context, output).await,
        Command::Audit(args) => commands::audit::run(args, context, output).await,
        Command::Bench(args) => commands::bench::run(args, context, output).await,
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::completions::run_man(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.at(context.target.found()).report(),
    }
}
