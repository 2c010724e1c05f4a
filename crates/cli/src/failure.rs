//! Why a command did not do what it was asked: a sentence, what to do about it, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use outbox::{OutboxError, TablePrefix};
use sqlx::mysql::MySqlDatabaseError;

/// Exit codes, as `outbox help` documents them. They are API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The answer is no: a check failed, or somebody declined.
    No = 1,
    /// The command makes no sense.
    Usage = 2,
    /// The database cannot be reached, or refuses.
    Database = 3,
    /// There is no outbox in the database, or one of another version.
    Schema = 4,
    /// What was asked for does not exist, or is not in a state for that.
    Missing = 5,
    /// A broker cannot be reached, or refuses.
    Broker = 6,
}

/// Where to read what an account needs.
const GRANTS: &str = "docs/grants has what each kind of account needs";

/// For people: lower-case, and with a way out if there is one.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
    /// The database that it happened to.
    place: Option<String>,
    way_out: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            place: None,
            way_out: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// There are no tables with this prefix.
    pub(crate) fn no_outbox(prefix: &TablePrefix) -> Self {
        if *prefix == TablePrefix::default() {
            return Self::new(Code::Schema, "there is no outbox in this database")
                .way_out("make its tables with: outbox migrate up");
        }
        let message = format!("there is no outbox with the prefix {prefix} in this database");
        Self::new(Code::Schema, message).way_out(format!(
            "make its tables with: outbox migrate up --table-prefix {prefix}"
        ))
    }

    /// Says what comes of it, before it says what it is.
    pub(crate) fn so(mut self, consequence: &str) -> Self {
        self.message = format!("{consequence}: {}", self.message);
        self
    }

    /// Says what to do about it.
    pub(crate) fn way_out(mut self, way_out: impl Into<String>) -> Self {
        self.way_out = Some(way_out.into());
        self
    }

    /// Says what else may be the matter.
    pub(crate) fn or(mut self, doubt: &str) -> Self {
        if let Some(way_out) = &mut self.way_out {
            way_out.push_str("; ");
            way_out.push_str(doubt);
        }
        self
    }

    /// Says which database it happened to, if it happened to one and nobody has said so.
    pub(crate) fn at(mut self, place: Option<&str>) -> Self {
        if matches!(self.code, Code::Database | Code::Schema) && self.place.is_none() {
            self.place = place.map(str::to_owned);
        }
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// What it is, where, and what to do, as far as that is known.
    fn parts(&self) -> impl Iterator<Item = String> {
        let place = self.place.as_ref().map(|place| format!("at {place}"));
        [Some(self.message.clone()), place, self.way_out.clone()]
            .into_iter()
            .flatten()
    }

    /// For a table or a log.
    pub(crate) fn on_one_line(&self) -> String {
        self.parts().collect::<Vec<_>>().join("; ")
    }

    /// Says it on standard error, and answers with what to exit.
    pub(crate) fn report(&self) -> ExitCode {
        anstream::eprintln!("{self}");
        ExitCode::from(self.code as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.parts().collect();
        write!(f, "outbox: {}", parts.join("\n        "))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Code::No, error.to_string())
    }
}

impl From<OutboxError> for Failure {
    fn from(error: OutboxError) -> Self {
        let code = match &error {
            OutboxError::Database(error) => return database(error),
            OutboxError::NoAnswer { .. } => Code::Database,
            OutboxError::MissingPrivilege { needed, error } => {
                let why = error
                    .as_database_error()
                    .map_or_else(|| error.to_string(), |error| error.message().to_owned());
                let message = format!("this account may not change the schema: {why}");
                return Self::new(Code::Database, message)
                    .way_out(format!("it takes {needed}; {GRANTS}"));
            }
            OutboxError::SchemaVersion { found: 0, .. } => {
                return Self::no_outbox(&TablePrefix::default());
            }
            OutboxError::SchemaVersion { found, expected } => {
                let message = format!(
                    "the outbox in this database has version {found}; this command knows {expected}"
                );
                let way_out = if found < expected {
                    "bring it up to date with: outbox migrate up"
                } else {
                    "use the command of that version"
                };
                return Self::new(Code::Schema, message).way_out(way_out);
            }
            OutboxError::QueueNotRegistered(_)
            | OutboxError::PartitionOutOfRange { .. }
            | OutboxError::DeadLetterNotPending(_)
            | OutboxError::LeaseLost { .. }
            | OutboxError::PartitionBusy { .. } => Code::Missing,
            OutboxError::PartitionCountMismatch { .. } => {
                return Self::usage(error.to_string())
                    .way_out("a queue keeps the number it was made with: say that one, or none");
            }
            OutboxError::ForeignTransactionIds { .. } => {
                return Self::new(Code::No, error.to_string()).way_out("see: outbox repair --help");
            }
            _ => Code::Usage,
        };
        Self::new(code, error.to_string())
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        database(&error)
    }
}

/// What the database said, by its codes.
fn database(error: &sqlx::Error) -> Failure {
    let failure = |message: String| Failure::new(Code::Database, message);
    let sqlx::Error::Database(refusal) = error else {
        return match error {
            sqlx::Error::Io(error) => failure(format!("cannot reach the database: {error}"))
                .way_out("is it running, and are host and port in the URL right?"),
            sqlx::Error::Tls(error) => {
                failure(format!("cannot reach the database with TLS: {error}"))
            }
            sqlx::Error::PoolTimedOut => failure("the database does not answer".to_owned()),
            _ => failure(format!("database: {error}")),
        };
    };
    let number = refusal
        .try_downcast_ref::<MySqlDatabaseError>()
        .map(MySqlDatabaseError::number);
    let code = refusal.code().unwrap_or_default();
    let message = refusal.message();
    match (&*code, number) {
        ("28P01" | "28000", _) | (_, Some(1130)) => {
            failure(format!("the database refuses the account: {message}"))
                .way_out("check user and password in the URL")
        }
        ("3D000", _) | (_, Some(1049)) => failure(format!("the database is not there: {message}"))
            .way_out("check the last part of the URL, or create it"),
        ("42501", _) | (_, Some(1044 | 1142 | 1143 | 1227 | 1370)) => {
            failure(format!("the account lacks a privilege: {message}")).way_out(GRANTS)
        }
        ("53300", _) | (_, Some(1040)) => {
            failure(format!("the database has no connection left: {message}"))
                .way_out("raise its limit, or shrink the pools of those who use it")
        }
        ("14" | "526", None) => failure(format!("cannot open the file: {message}"))
            .way_out("its folder must exist; ?mode=rwc at the URL's end creates the file"),
        ("8" | "520" | "1544", None) => failure(format!("cannot write to the file: {message}"))
            .way_out("is it or its folder read-only, or does the URL say mode=ro?"),
        ("26", None) => failure(format!("this is no database of SQLite: {message}"))
            .way_out("check the file's name in the URL"),
        ("5", None) => failure(message.to_owned()).way_out(
            "somebody has been writing for longer than 10 s: find the transaction that is open",
        ),
        _ => failure(format!("database: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_schema_names_the_command_that_makes_it() {
        let failure = Failure::from(OutboxError::SchemaVersion {
            found: 0,
            expected: 1,
        });
        assert_eq!(failure.code, Code::Schema);
        assert_eq!(
            failure.to_string(),
            "outbox: there is no outbox in this database\n        \
             make its tables with: outbox migrate up"
        );
    }
}
