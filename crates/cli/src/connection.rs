//! Where the outbox is: finds the database, and opens the outbox in it for whoever operates it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
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
use crate::given::Given;

/// Where the environment says where the database is. A variable that is empty says nothing.
pub(crate) const URL: &str = "OUTBOX_DATABASE_URL";
/// Where it says what the tables' names begin with.
const PREFIX: &str = "OUTBOX_TABLE_PREFIX";
/// Where it says where the configuration file is.
const CONFIG: &str = "OUTBOX_CONFIG";
/// What the option `--database` is known by here, for `migrate print` has an argument of that name.
const DATABASE: &str = "database-of-config";
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// An operator does one thing at a time.
const CONNECTIONS: u32 = 4;

/// Which outbox a command is about.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database")]
pub(crate) struct Target {
    #[command(flatten)]
    given: Given,
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
        id = DATABASE,
        long = "database",
        value_name = "NAME",
        global = true
    )]
    database: Option<String>,
    /// The database that was found, in words.
    #[arg(skip)]
    found: OnceLock<String>,
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
            given: Given::default(),
            database_url: Some(url.to_owned()),
            table_prefix: None,
            config: None,
            database: None,
            found: OnceLock::new(),
        }
    }

    /// The database that was found, for whoever is told that something is wrong with it.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.get().map(String::as_str)
    }

    /// Where the configuration file is, or would be.
    pub(crate) fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(config::FILE))
    }

    /// Where the database is, if the command line says so. What the environment says is for commands that
    /// are about that database.
    pub(crate) fn explicit_url(&self) -> Option<&str> {
        let given = self.given.has("database_url");
        self.database_url.as_deref().filter(|_| given)
    }

    /// Refuses what the command line says of a database, for a command whose databases are in its file.
    pub(crate) fn leaves_it_to_the_file(&self) -> Result<(), Failure> {
        let said = [
            ("--database-url", "database_url"),
            ("--table-prefix", "table_prefix"),
            ("--database", DATABASE),
        ];
        match said.iter().find(|(_, field)| self.given.has(field)) {
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
        let place = self.find()?;
        if let Some(shown) = place.shown() {
            self.found.get_or_init(|| shown);
        }
        Ok(place)
    }

    fn find(&self) -> Result<Place, Failure> {
        if let (Some(_), Some(name)) = (self.explicit_url(), &self.database) {
            let message = format!("--database-url and --database {name} each name a database");
            return Err(Failure::usage(message).way_out("leave out the one that is not meant"));
        }
        let by_file = self.database.is_some() || self.given.has("config");
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
        let file = config::File::read(self.config())?;
        let databases = file.databases()?;
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
        file.check_url(database)?;
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
            url: database.url().to_owned(),
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
        builder.start().await.map_err(|error| {
            let failure = match error {
                OutboxError::SchemaVersion { found: 0, .. } => self.no_outbox(),
                error => error.into(),
            };
            failure.at(self.shown().as_deref())
        })
    }

    /// There are no tables, or none that this account sees.
    pub(crate) fn no_outbox(&self) -> Failure {
        let failure = Failure::no_outbox(&self.prefix);
        match options(&self.url) {
            Ok(Any::Sqlite(_)) => failure,
            _ => failure.or("or, if they are there, grant this account what docs/grants has"),
        }
    }

    /// The account, the server and the database, or the file; never a password.
    fn shown(&self) -> Option<String> {
        // A password with a / in it makes a host or a database's name of its rest.
        let authority = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        let torn = self.url.matches('@').count() > authority.matches('@').count();
        let server = |kind: &str, account: &str, host: &str, port: u16, name: Option<&str>| {
            if torn {
                return format!("{kind}://…");
            }
            let name = name.unwrap_or_default();
            format!("{kind}://{account}@{host}:{port}/{name}")
        };
        Some(match options(&self.url).ok()? {
            Any::Postgres(at) => server(
                "postgres",
                at.get_username(),
                at.get_host(),
                at.get_port(),
                at.get_database(),
            ),
            Any::MySql(at) => server(
                "mysql",
                at.get_username(),
                at.get_host(),
                at.get_port(),
                at.get_database(),
            ),
            Any::Sqlite(at) => format!("sqlite://{}", at.get_filename().display()),
        })
    }

    /// Connects. What is wrong is said with the database it is wrong with.
    pub(crate) async fn pool(&self, connections: u32) -> Result<AnyPool, Failure> {
        let pool = self.connect(connections).await;
        pool.map_err(|failure| failure.at(self.shown().as_deref()))
    }

    async fn connect(&self, connections: u32) -> Result<AnyPool, Failure> {
        Ok(match options(&self.url)? {
            Any::Postgres(at) => Any::Postgres(connect(at, connections).await?),
            Any::MySql(at) => Any::MySql(connect(at, connections).await?),
            Any::Sqlite(at) => Any::Sqlite(connect(at.busy_timeout(CONNECT), connections).await?),
        })
    }
}

type AnyOptions = Any<PgConnectOptions, MySqlConnectOptions, SqliteConnectOptions>;

/// What a URL says, if it is one of a database that we know.
pub(crate) fn options(url: &str) -> Result<AnyOptions, Failure> {
    let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
    Ok(match scheme {
        "postgres" | "postgresql" => Any::Postgres(parsed(url)?),
        "mysql" | "mariadb" => Any::MySql(parsed(url)?),
        "sqlite" => Any::Sqlite(parsed(url)?),
        // Not the whole of it: there may be a password in it, also in front.
        _ => {
            let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            let message = match url.contains("://") && scheme.bytes().all(is_scheme) {
                true => format!("there is no database {scheme:?}"),
                false => "the database's URL is no URL".to_owned(),
            };
            return Err(Failure::usage(message).way_out(
                "it begins with postgres://, mysql:// or sqlite://, as in sqlite:///var/lib/shop.db?mode=rwc",
            ));
        }
    })
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
            if let Err(failure) = options(&url) {
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
            let shown = match options(&url) {
                Err(failure) => failure.to_string(),
                Ok(_) => place(url).shown().unwrap_or_default(),
            };
            prop_assert!(!shown.contains(SECRET), "{}", shown);
        }
    }

    #[test]
    fn what_stands_in_front_of_a_url_is_not_shown() {
        let failure = options(&format!("{SECRET}\npostgres://me@localhost/shop"));
        let shown = failure.unwrap_err().to_string();
        assert!(
            shown.starts_with("outbox: the database's URL is no URL"),
            "{shown}"
        );
    }
}
