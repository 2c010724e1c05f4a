//! A private server can be crashed and comes back with its data, and nothing of it is left afterwards.

use sqlx::{AssertSqlSafe, Connection as _, Database, Executor, MySql, Postgres};
use testbed::{PrivateServer, Server};

/// Whether a statement succeeds on a connection of its own.
async fn run<DB: Database>(url: &str, sql: &'static str) -> bool
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let Ok(mut connection) = DB::Connection::connect(url).await else {
        return false;
    };
    let done = connection.execute(AssertSqlSafe(sql)).await.is_ok();
    // A connection that broke has nothing left to close.
    let _ = connection.close().await;
    done
}

async fn crash_and_return<DB: Database>(server: Server)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let Some(mut private) = PrivateServer::start(server).await else {
        return;
    };
    let url = private.database().url().to_owned();
    assert!(run::<DB>(&url, "CREATE TABLE orders (id INTEGER PRIMARY KEY)").await);
    assert!(run::<DB>(&url, "INSERT INTO orders VALUES (1)").await);
    private.kill().await;
    assert!(!run::<DB>(&url, "SELECT 1").await, "{server} is down");
    private.start_again().await;
    assert!(
        run::<DB>(&url, "INSERT INTO orders VALUES (2)").await,
        "{server} is back"
    );
    assert!(
        !run::<DB>(&url, "INSERT INTO orders VALUES (1)").await,
        "the row is still there"
    );
    drop(private);
    assert!(!run::<DB>(&url, "SELECT 1").await, "{server} is gone");
}

#[tokio::test]
async fn postgres_comes_back() {
    crash_and_return::<Postgres>(Server::Postgres).await;
}

#[tokio::test]
async fn mariadb_comes_back() {
    crash_and_return::<MySql>(Server::MariaDb).await;
}

#[tokio::test]
async fn mysql_comes_back() {
    crash_and_return::<MySql>(Server::MySql).await;
}
