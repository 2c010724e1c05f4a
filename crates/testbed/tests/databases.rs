//! The databases that take part are really reached, each test has one of its own, and it is gone
//! afterwards.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use sqlx::{Connection as _, Database as SqlDatabase, Executor, Row as _};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};
use testbed::{Database, Server, announce, with_database};

/// Writes a row, takes one back, and answers what is left and the server's version.
macro_rules! exercise {
    ($connection:ty, $url:expr, $version:literal) => {{
        let mut connection = <$connection>::connect($url).await.expect("connect");
        connection
            .execute("CREATE TABLE orders (id INTEGER)")
            .await
            .expect("create");
        let mut kept = connection.begin().await.expect("begin");
        kept.execute("INSERT INTO orders VALUES (1)")
            .await
            .expect("insert");
        kept.commit().await.expect("commit");
        let mut undone = connection.begin().await.expect("begin");
        undone
            .execute("INSERT INTO orders VALUES (2)")
            .await
            .expect("insert");
        undone.rollback().await.expect("roll back");
        let rows = connection
            .fetch_one("SELECT COUNT(*) FROM orders")
            .await
            .expect("count");
        let version = connection.fetch_one($version).await.expect("version");
        connection.close().await.expect("close");
        (rows.get::<i64, _>(0), version.get::<String, _>(0))
    }};
}

async fn orders_and_version(database: &Database) -> (i64, String) {
    let url = database.url();
    match database.server() {
        Server::Postgres => exercise!(PgConnection, url, "SHOW server_version"),
        Server::MariaDb | Server::MySql => exercise!(MySqlConnection, url, "SELECT VERSION()"),
        Server::Sqlite => exercise!(SqliteConnection, url, "SELECT sqlite_version()"),
    }
}

async fn reach(server: Server) {
    // Two at a time: the same table in both, one row in each.
    with_database(server, async |first| {
        with_database(server, async |second| {
            assert_ne!(first.url(), second.url());
            let (rows, _) = orders_and_version(first).await;
            assert_eq!(rows, 1);
            let (rows, version) = orders_and_version(second).await;
            assert_eq!(rows, 1);
            let is_mariadb = version.contains("MariaDB");
            assert_eq!(
                is_mariadb,
                server == Server::MariaDb,
                "{server} answers as {version}"
            );
            announce(&format!("reached {server} {version}"));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn postgres_is_reached() {
    reach(Server::Postgres).await;
}

#[tokio::test]
async fn mariadb_is_reached() {
    reach(Server::MariaDb).await;
}

#[tokio::test]
async fn mysql_is_reached() {
    reach(Server::MySql).await;
}

#[tokio::test]
async fn sqlite_is_reached() {
    reach(Server::Sqlite).await;
}

/// Whether the database of a URL still answers.
async fn exists<DB: SqlDatabase>(url: &str) -> bool {
    DB::Connection::connect(url).await.is_ok()
}

#[tokio::test]
async fn a_failed_test_leaves_no_database_behind() {
    for server in Server::ALL {
        let url = std::sync::Mutex::new(String::new());
        let test = with_database(server, async |database| {
            *url.lock().unwrap() = database.url().to_owned();
            orders_and_version(database).await;
            panic!("as a failing test does");
        });
        let failed = AssertUnwindSafe(test).catch_unwind().await.is_err();
        let url = url.into_inner().unwrap();
        assert_eq!(failed, !url.is_empty(), "the panic goes on");
        if url.is_empty() {
            continue;
        }
        let left = match server {
            Server::Postgres => exists::<sqlx::Postgres>(&url).await,
            Server::MariaDb | Server::MySql => exists::<sqlx::MySql>(&url).await,
            Server::Sqlite => exists::<sqlx::Sqlite>(&url.replace("mode=rwc", "mode=rw")).await,
        };
        assert!(!left, "{url} is still there");
    }
}
