//! One database per test: made, handed over, removed.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::FutureExt as _;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection};
use tempfile::TempDir;

use crate::server::Server;

/// An empty database that belongs to one test.
#[derive(Debug)]
pub struct Database {
    server: Server,
    name: String,
    url: String,
    /// SQLite's file lives here; removed with the value.
    _folder: Option<TempDir>,
}

impl Database {
    /// What kind of database it is.
    pub fn server(&self) -> Server {
        self.server
    }

    /// Where it is, for sqlx.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// One that is there already, on a server that goes away with it.
    pub(crate) fn given(server: Server, url: String) -> Self {
        Self {
            server,
            name: url.rsplit('/').next().unwrap_or_default().to_owned(),
            url,
            _folder: None,
        }
    }

    async fn create(server: Server) -> Self {
        let name = unique_name();
        let Some(admin_url) = server.admin_url().filter(|_| server != Server::Sqlite) else {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let file = folder.path().join(format!("{name}.db"));
            let url = format!("sqlite://{}?mode=rwc", file.display());
            return Self {
                server,
                name,
                url,
                _folder: Some(folder),
            };
        };
        administer(server, &admin_url, &format!("CREATE DATABASE {name}")).await;
        let url = with_database_name(&admin_url, &name);
        Self {
            server,
            name,
            url,
            _folder: None,
        }
    }

    async fn remove(self) {
        let Some(admin_url) = self.server.admin_url() else {
            return;
        };
        let drop = match self.server {
            // A test that failed may have left connections open.
            Server::Postgres => format!("DROP DATABASE {} WITH (FORCE)", self.name),
            Server::MariaDb | Server::MySql => format!("DROP DATABASE {}", self.name),
            Server::Sqlite => return,
        };
        administer(self.server, &admin_url, &drop).await;
    }
}

/// Runs a test on a database of its own, if the server takes part, and removes the database
/// afterwards, also when the test panics.
pub async fn with_database(server: Server, test: impl AsyncFnOnce(&Database)) {
    if !server.takes_part() {
        return;
    }
    let database = Database::create(server).await;
    let result = AssertUnwindSafe(test(&database)).catch_unwind().await;
    database.remove().await;
    if let Err(payload) = result {
        resume_unwind(payload);
    }
}

/// Runs one statement as the administrator. The statement holds a name made here, nothing else.
async fn administer(server: Server, url: &str, statement: &str) {
    let statement = sqlx::raw_sql(AssertSqlSafe(statement));
    let result = if server == Server::Postgres {
        let mut connection = PgConnection::connect(url)
            .await
            .expect("connect to postgres");
        statement.execute(&mut connection).await.map(drop)
    } else {
        let mut connection = MySqlConnection::connect(url)
            .await
            .expect("connect to mysql");
        statement.execute(&mut connection).await.map(drop)
    };
    result.unwrap_or_else(|error| panic!("{server}: {error}"));
}

/// Unique among tests, processes and runs that share a server.
fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    format!("outbox_test_{now:x}_{:x}_{next:x}", std::process::id())
}

/// The same server, account and options, another database.
fn with_database_name(url: &str, name: &str) -> String {
    let (address, options) = url
        .split_once('?')
        .map_or((url, ""), |(address, o)| (address, o));
    let authority = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[authority..]
        .find('/')
        .map_or(address.len(), |slash| authority + slash);
    let options = if options.is_empty() {
        String::new()
    } else {
        format!("?{options}")
    };
    format!("{}/{name}{options}", &address[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_in_a_url_is_replaced_and_the_rest_kept() {
        for (url, expected) in [
            (
                "postgres://u:p@127.0.0.1:5432/postgres",
                "postgres://u:p@127.0.0.1:5432/mine",
            ),
            ("mysql://root@localhost", "mysql://root@localhost/mine"),
            (
                "mysql://h/a?ssl-mode=disabled&b=c/d",
                "mysql://h/mine?ssl-mode=disabled&b=c/d",
            ),
        ] {
            assert_eq!(with_database_name(url, "mine"), expected);
        }
    }
}
