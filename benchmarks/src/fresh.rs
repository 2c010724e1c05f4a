//! A database of its own for every measurement, on servers somebody else started.

use anyhow::{Context as _, Result};
use bench_contract::Database;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, PgConnection};
use sqlx::{Row as _, SqliteConnection};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// An empty database.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) database: Database,
    pub(crate) url: String,
    name: String,
    _folder: Option<TempDir>,
}

/// Where the administrator of a database connects.
pub(crate) fn admin_url(database: Database) -> Result<String> {
    let variable = match database {
        Database::Postgres => "OUTBOX_TEST_POSTGRES_URL",
        Database::MariaDb => "OUTBOX_TEST_MARIADB_URL",
        Database::MySql => "OUTBOX_TEST_MYSQL_URL",
        Database::Sqlite => return Ok(String::new()),
    };
    std::env::var(variable).with_context(|| format!("{variable} is not set; see scripts/bench"))
}

impl Fresh {
    pub(crate) async fn create(database: Database) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("outbox_bench_{}_{next}", std::process::id());
        if database == Database::Sqlite {
            let folder = tempfile::tempdir()?;
            let url = format!("sqlite://{}/{name}.db", folder.path().display());
            let _folder = Some(folder);
            return Ok(Self {
                database,
                url,
                name,
                _folder,
            });
        }
        let admin = admin_url(database)?;
        let fresh = Self {
            database,
            url: with_database_name(&admin, &name),
            name,
            _folder: None,
        };
        execute(database, &admin, &format!("CREATE DATABASE {}", fresh.name)).await?;
        if database == Database::Postgres && next == 0 {
            // What somebody left unwritten must not be written during a measurement. After the first
            // one, dropping the database before has seen to it.
            execute(database, &admin, "CHECKPOINT").await?;
        }
        Ok(fresh)
    }

    /// One number.
    pub(crate) async fn number(&self, query: &str) -> Result<i64> {
        let text = AssertSqlSafe(query);
        Ok(match self.database {
            Database::Postgres => {
                let mut connection = PgConnection::connect(&self.url).await?;
                sqlx::query(text).fetch_one(&mut connection).await?.get(0)
            }
            Database::MariaDb | Database::MySql => {
                let mut connection = MySqlConnection::connect(&self.url).await?;
                sqlx::query(text).fetch_one(&mut connection).await?.get(0)
            }
            Database::Sqlite => {
                let mut connection = sqlite(&self.url).await?;
                sqlx::query(text).fetch_one(&mut connection).await?.get(0)
            }
        })
    }

    /// Removes it, whoever is still connected.
    pub(crate) async fn remove(self) -> Result<()> {
        let force = match self.database {
            Database::Postgres => " WITH (FORCE)",
            Database::MariaDb | Database::MySql => "",
            Database::Sqlite => return Ok(()),
        };
        let drop = format!("DROP DATABASE {}{force}", self.name);
        execute(self.database, &admin_url(self.database)?, &drop).await
    }
}

async fn sqlite(url: &str) -> Result<SqliteConnection> {
    let options = sqlx::sqlite::SqliteConnectOptions::from_str(url)?;
    Ok(options.connect().await?)
}

/// Runs one statement. It holds names made here, nothing else.
pub(crate) async fn execute(database: Database, url: &str, statement: &str) -> Result<()> {
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    if database == Database::Postgres {
        query
            .execute(&mut PgConnection::connect(url).await?)
            .await?;
    } else {
        query
            .execute(&mut MySqlConnection::connect(url).await?)
            .await?;
    }
    Ok(())
}

/// The same server, account and options, another database.
fn with_database_name(url: &str, name: &str) -> String {
    let (address, options) = url
        .split_once('?')
        .map_or((url, None), |(a, o)| (a, Some(o)));
    let authority = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[authority..]
        .find('/')
        .map_or(address.len(), |slash| authority + slash);
    let options = options.map_or_else(String::new, |options| format!("?{options}"));
    format!("{}/{name}{options}", &address[..end])
}

#[cfg(test)]
mod tests {
    use super::with_database_name;

    #[test]
    fn the_database_in_a_url_is_replaced_and_the_rest_kept() {
        for (url, expected) in [
            ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/mine"),
            ("mysql://root@h", "mysql://root@h/mine"),
            ("mysql://root@h/?a=b", "mysql://root@h/mine?a=b"),
        ] {
            assert_eq!(with_database_name(url, "mine"), expected);
        }
    }
}
