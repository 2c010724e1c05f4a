//! `outbox completions` and `outbox man`: for the shell and for `man`.

use std::io;
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;

/// Print what makes a shell complete this command
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox completions bash > /etc/bash_completion.d/outbox
  outbox completions fish > ~/.config/fish/completions/outbox.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "outbox", &mut script);
    match io::Write::write_all(&mut io::stdout(), &script) {
        // Whoever reads it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Write the man pages into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The folder, which must exist
    folder: PathBuf,
}

pub(crate) fn run_man(args: &ManArgs) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(|error| {
        Failure::usage(format!(
            "cannot write to {}: {error}",
            args.folder.display()
        ))
    })
}
