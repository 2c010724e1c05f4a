//! Asks before something is done that cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use crate::failure::{Code, Failure};

#[derive(Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask
    #[arg(long, short = 'y', help_heading = None::<&'static str>)]
    yes: bool,
}

impl Confirmation {
    /// Whether somebody has said yes already.
    pub(crate) fn is_given(&self) -> bool {
        self.yes
    }

    /// Goes on if somebody says yes. Where nobody can be asked, only `--yes` is a yes.
    pub(crate) fn ask(&self, question: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            let message = format!("{question}? There is nobody to ask");
            return Err(Failure::usage(message).way_out("say --yes if that is what you want"));
        }
        eprint!("{question}? [y/N] ");
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match &*answer.trim().to_lowercase() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::new(Code::No, "nothing was changed")),
        }
    }
}
