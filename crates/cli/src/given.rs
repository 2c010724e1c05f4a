//! Which options the command line gave. What the environment says may be the same, and counts for less.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// The options that the command line gave, of a set of options that begins with this. At its end they would
/// have been taken out already.
#[derive(Debug, Default)]
pub(crate) struct Given(Vec<String>);

impl Given {
    /// Whether the command line gave this option; fields are named as in the set of options.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.0.iter().any(|given| given == option)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = matches.ids().map(clap::Id::as_str);
        let given = given
            .filter(|option| matches.value_source(option) == Some(ValueSource::CommandLine))
            .map(str::to_owned);
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// It adds no option.
impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
