//! Where the outbox is: finds the database, and opens the outbox in it for whoever operates it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use outbox::{Backend, Outbox, OutboxError, OutboxHandle, Partitions, TablePrefix};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, MySql, Pool, Postgres, Sqlite};

use crate::config::{self, Database};
use crate::failure::{Code, Failure};

/// Where the environment says where the database is.
pub(crate) const URL: &str = "OUTBOX_DATABASE_URL";
/// Where it says what the tables' names begin with.
const PREFIX: &str = "OUTBOX_TABLE_PREFIX";
/// Where it says where the configuration file is.
const CONFIG: &str = "OUTBOX_CONFIG";
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// An operator does one thing at a time.
const CONNECTIONS: u32 = 4;

/// Which outbox a command is about.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database")]
pub(crate) struct Target {
    /// Where the database is: postgres://…, mysql://… (MariaDB too) or sqlite://…
    #[arg(
        long,
        value_name = "URL",
        env = URL,
        hide_env_values = true,
        global = true
    )]
    database_url: Option<String>,
    /// What the names of the outbox's tables begin with: outbox_ unless said
    #[arg(
        long,
        value_name = "PREFIX",
        env = PREFIX,
        hide_env_values = true,
        global = true
    )]
    table_prefix: Option<String>,
    /// The configuration file, which may say where the database is: outbox.toml unless said
    #[arg(
        long,
        value_name = "FILE",
        env = CONFIG,
        hide_env_values = true,
        global = true
    )]
    config: Option<PathBuf>,
    /// Which database of the configuration file, if there are several
    #[arg(
        id = "database-of-config",
        long = "database",
        value_name = "NAME",
        global = true
    )]
    database: Option<String>,
}

/// An outbox that was found.
#[derive(Debug)]
pub(crate) struct Place {
    url: String,
    prefix: TablePrefix,
    /// What the configuration file calls it.
    name: Option<String>,
}

/// The databases there are, with something for each of them.
#[derive(Debug)]
pub(crate) enum Any<P, M, S> {
    Postgres(P),
    MySql(M),
    Sqlite(S),
}

type AnyOptions = Any<PgConnectOptions, MySqlConnectOptions, SqliteConnectOptions>;
pub(crate) type AnyPool = Any<Pool<Postgres>, Pool<MySql>, Pool<Sqlite>>;
pub(crate) type AnyOutbox = Any<OutboxHandle<Postgres>, OutboxHandle<MySql>, OutboxHandle<Sqlite>>;

/// Runs the same on whichever database it is.
macro_rules! on {
    ($any:expr, $one:ident => $body:expr) => {
        match $any {
            $crate::connection::Any::Postgres($one) => $body,
            $crate::connection::Any::MySql($one) => $body,
            $crate::connection::Any::Sqlite($one) => $body,
        }
    };
}
pub(crate) use on;

impl Target {
    /// An outbox with the usual prefix.
    pub(crate) fn at(url: &str) -> Self {
        Self {
            database_url: Some(url.to_owned()),
            table_prefix: None,
            config: None,
            database: None,
        }
    }

    /// Where the configuration file is, or would be.
    pub(crate) fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(config::FILE))
    }

    /// Where the database is, if the command line says so. What the environment says is for commands that
    /// are about that database.
    pub(crate) fn explicit_url(&self) -> Option<&str> {
        explicit(self.database_url.as_deref(), URL)
    }

    /// Refuses what the command line says of a database, for a command whose databases are in its file.
    pub(crate) fn leaves_it_to_the_file(&self) -> Result<(), Failure> {
        let said = [
            ("--database-url", self.explicit_url()),
            (
                "--table-prefix",
                explicit(self.table_prefix.as_deref(), PREFIX),
            ),
            ("--database", self.database.as_deref()),
        ];
        match said.iter().find(|(_, value)| value.is_some()) {
            None => Ok(()),
            Some((option, _)) => {
                let file = self.config().display();
                let message = format!("{option} changes nothing here: {file} says which databases");
                Err(Failure::usage(message)
                    .way_out("change the file, or name another one with --config"))
            }
        }
    }

    /// The prefix, where there need not be a database.
    pub(crate) fn prefix(&self) -> Result<TablePrefix, Failure> {
        self.prefix_or(&TablePrefix::default())
    }

    fn prefix_or(&self, otherwise: &TablePrefix) -> Result<TablePrefix, Failure> {
        Ok(match &self.table_prefix {
            Some(prefix) => prefix.parse()?,
            None => otherwise.clone(),
        })
    }

    /// The command line, the environment, the configuration file: who says it first. A file that the command
    /// line names is the command line's word.
    pub(crate) fn place(&self) -> Result<Place, Failure> {
        if let (Some(_), Some(name)) = (self.explicit_url(), &self.database) {
            let message = format!("--database-url and --database {name} each name a database");
            return Err(Failure::usage(message).way_out("leave out the one that is not meant"));
        }
        let file = self.config.as_deref().and_then(Path::to_str);
        let by_file = self.database.is_some() || explicit(file, CONFIG).is_some();
        let url = match by_file {
            true => self.explicit_url(),
            false => self.database_url.as_deref(),
        };
        if let Some(url) = url {
            return Ok(Place {
                url: url.to_owned(),
                prefix: self.prefix()?,
                name: None,
            });
        }
        if self.config.is_none() && self.database.is_none() && !self.config().exists() {
            let message = "which database? Neither --database-url nor OUTBOX_DATABASE_URL is set, and there \
                           is no outbox.toml here";
            return Err(Failure::usage(message)
                .way_out("for example: --database-url postgres://user:password@localhost/shop"));
        }
        let databases = config::File::read(self.config())?.databases()?;
        let names: Vec<&str> = databases.iter().map(Database::name).collect();
        let shown = self.config().display();
        let database = match (&self.database, &*databases) {
            (None, [database]) => database,
            (None, _) => {
                let message = format!("which database? {shown} has: {}", names.join(", "));
                return Err(Failure::usage(message).way_out("say it with --database NAME"));
            }
            (Some(wanted), databases) => databases
                .iter()
                .find(|database| database.name() == wanted)
                .ok_or_else(|| {
                    let message = format!("{shown} has no database {wanted:?}");
                    Failure::usage(message).way_out(format!("there are: {}", names.join(", ")))
                })?,
        };
        Ok(Place {
            prefix: self.prefix_or(database.prefix())?,
            ..Place::of(database)
        })
    }

    /// Connects, so that a wrong address is noticed here and not by whatever comes next.
    pub(crate) async fn pool(&self) -> Result<AnyPool, Failure> {
        self.pool_of(CONNECTIONS).await
    }

    /// The same, with more connections.
    pub(crate) async fn pool_of(&self, connections: u32) -> Result<AnyPool, Failure> {
        self.place()?.pool(connections).await
    }

    /// The outbox, with every queue that it has. Nothing works in it.
    pub(crate) async fn outbox(&self) -> Result<AnyOutbox, Failure> {
        self.outbox_with(None).await
    }

    /// The same, and a queue that is made if it is not there.
    pub(crate) async fn outbox_with(
        &self,
        queue: Option<(&str, Partitions)>,
    ) -> Result<AnyOutbox, Failure> {
        self.place()?.outbox(queue).await
    }
}

impl Place {
    /// A database of the configuration file.
    pub(crate) fn of(database: &Database) -> Self {
        Self {
            url: database.url.as_str().to_owned(),
            prefix: database.prefix().clone(),
            name: Some(database.name().to_owned()),
        }
    }

    pub(crate) fn prefix(&self) -> &TablePrefix {
        &self.prefix
    }

    /// The outbox, with every queue that it has, and one that is made if it is not there. Nothing works in it.
    pub(crate) async fn outbox(
        &self,
        queue: Option<(&str, Partitions)>,
    ) -> Result<AnyOutbox, Failure> {
        Ok(match self.pool(CONNECTIONS).await? {
            Any::Postgres(pool) => Any::Postgres(self.open(pool, queue).await?),
            Any::MySql(pool) => Any::MySql(self.open(pool, queue).await?),
            Any::Sqlite(pool) => Any::Sqlite(self.open(pool, queue).await?),
        })
    }

    /// The same, with this pool.
    pub(crate) async fn open<DB: Backend>(
        &self,
        pool: Pool<DB>,
        queue: Option<(&str, Partitions)>,
    ) -> Result<OutboxHandle<DB>, Failure> {
        let mut builder = Outbox::builder(pool)
            .table_prefix(self.prefix.to_string())
            .without_workers()
            .every_queue();
        if let Some(name) = &self.name {
            builder = builder.origin(name);
        }
        if let Some((name, partitions)) = queue {
            builder = builder.queue(name, partitions).produce_only();
        }
        builder.start().await.map_err(|error| match error {
            OutboxError::SchemaVersion { found: 0, .. } => Failure::no_outbox(&self.prefix),
            error => error.into(),
        })
    }

    pub(crate) async fn pool(&self, connections: u32) -> Result<AnyPool, Failure> {
        Ok(match self.options()? {
            Any::Postgres(options) => Any::Postgres(connect(options, connections).await?),
            Any::MySql(options) => Any::MySql(connect(options, connections).await?),
            Any::Sqlite(options) => {
                let file = options.get_filename().display().to_string();
                let pool = connect(options.busy_timeout(CONNECT), connections).await;
                Any::Sqlite(pool.map_err(|failure| failure.so(&file))?)
            }
        })
    }

    /// How to connect, as the URL says.
    fn options(&self) -> Result<AnyOptions, Failure> {
        let url = &*self.url;
        let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "postgres" | "postgresql" => Ok(Any::Postgres(parsed(url)?)),
            "mysql" | "mariadb" => Ok(Any::MySql(parsed(url)?)),
            "sqlite" => Ok(Any::Sqlite(parsed(url)?)),
            // Not the whole of it: there may be a password in it, also in front.
            _ => {
                let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
                let message = match url.contains("://") && scheme.bytes().all(is_scheme) {
                    true => format!("there is no database {scheme:?}"),
                    false => "the database's URL is no URL".to_owned(),
                };
                Err(Failure::usage(message).way_out(
                    "it begins with postgres://, mysql:// or sqlite://, as in sqlite:///var/lib/shop.db?mode=rwc",
                ))
            }
        }
    }
}

/// What the command line says, and not the environment.
pub(crate) fn explicit<'a>(value: Option<&'a str>, variable: &str) -> Option<&'a str> {
    let environment = std::env::var(variable).ok();
    value.filter(|value| environment.as_deref() != Some(value))
}

fn parsed<O: FromStr<Err = sqlx::Error>>(url: &str) -> Result<O, Failure> {
    url.parse().map_err(|error: sqlx::Error| {
        let message = match error {
            sqlx::Error::Configuration(error) => error.to_string(),
            error => error.to_string(),
        };
        Failure::usage(format!("the database's URL cannot be read: {message}")).way_out(
            "in a user or a password / is written as %2F, @ as %40, : as %3A, # as %23, ? as %3F, % as %25",
        )
    })
}

async fn connect<DB: Backend>(options: Options<DB>, connections: u32) -> Result<Pool<DB>, Failure> {
    let first = tokio::time::timeout(CONNECT, DB::Connection::connect_with(&options)).await;
    let first = first.map_err(|_| {
        let message = format!("the database did not answer within {CONNECT:?}");
        Failure::new(Code::Database, message)
            .way_out("are host and port in the URL right, and does a firewall let them pass?")
    })?;
    first?.close().await?;
    Ok(PoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(CONNECT)
        .connect_lazy_with(options))
}

type Options<DB> = <<DB as sqlx::Database>::Connection as sqlx::Connection>::Options;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "s3cr3t";

    fn place(url: String) -> Place {
        Place {
            url,
            prefix: TablePrefix::default(),
            name: None,
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_url_or_refused(url in "((postgres|mysql|mariadb|sqlite):(//)?)?(?s:.{0,40})") {
            if let Err(failure) = place(url).options() {
                prop_assert_eq!(failure.code(), Code::Usage);
            }
        }

        /// Written as it should be, or with all that should have been written otherwise.
        #[test]
        fn a_refused_url_keeps_its_password(
            scheme in "postgres|postgresql|mysql|mariadb|[ -~]{0,12}",
            user in "[a-z]{0,5}|[ -~]{0,5}",
            (before, after) in ("[ -~]{0,8}|(?s:.{0,8})", "[ -~]{0,8}|(?s:.{0,8})"),
            host in "[a-z.]{0,9}(:[0-9]{1,6})?|[ -~]{0,9}",
            path in "(/[a-z]{0,5})?([?][a-z]{0,9}=[ -~]{0,5})?|[ -~]{0,20}",
        ) {
            let url = format!("{scheme}://{user}:{before}{SECRET}{after}@{host}{path}");
            if let Err(failure) = place(url).options() {
                prop_assert!(!failure.to_string().contains(SECRET), "{}", failure);
            }
        }
    }

    #[test]
    fn what_stands_in_front_of_a_url_is_not_shown() {
        let failure = place(format!("{SECRET}\npostgres://me@localhost/shop")).options();
        let shown = failure.unwrap_err().to_string();
        assert!(
            shown.starts_with("outbox: the database's URL is no URL"),
            "{shown}"
        );
    }
}
