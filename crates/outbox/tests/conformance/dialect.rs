//! What the tests themselves ask of a database, beside the outbox: the few statements that sqlx
//! cannot write generically.

use std::future::Future;
use std::time::Duration;

use outbox::Backend;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool};

/// A database as the tests see it.
pub(crate) trait Dialect: Backend {
    /// A pool on the test's own database.
    fn connect(url: &str, connections: u32) -> impl Future<Output = Pool<Self>> + Send;

    /// Runs a statement.
    fn run(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The one number a query answers.
    fn number(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// A migration that is written for the database's command-line client, as the server reads it.
    fn for_the_server(script: String) -> String {
        script
    }

    /// Cuts every other connection to the test's database; false where there is nothing to cut.
    fn cut_connections(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// The ways a producer's transaction can begin.
    const TRANSACTIONS: &[&[&str]];

    /// How soon, in the middle, another process hears of new work. Looking every 80 ms would make it
    /// 40 ms, and more with the enqueue.
    const HEARD_WITHIN: Duration = Duration::from_millis(30);

    /// A batch of the sequencer of which thousands of messages are many steps, but not a thousand.
    const SMALL_BATCH: u32 = 40;

    /// Whether two transactions can be open at once and both have written.
    const CONCURRENT_WRITERS: bool = true;

    /// How a transaction begins that is going to write.
    const BEGIN_WRITING: &'static str = "BEGIN";

    /// Makes every later transaction of a session as strict as the database knows.
    const STRICTEST: &'static str;

    /// The tables that are empty once everything is settled and swept.
    const PASSING: &[&str];

    /// Whether DDL ends the transaction it runs in.
    const DDL_COMMITS: bool = false;

    /// A table whose rows are checked at the commit and not before; none where there is no such thing.
    const CHECKED_AT_COMMIT: &[&str] = &[];

    /// Makes a session look for deadlocks soon.
    const FINDS_DEADLOCKS_SOON: &'static str = "SELECT 1";

    /// What the session that shall survive a deadlock says, and what the other one says.
    const SURVIVES_DEADLOCKS: &'static str = "SELECT 1";
    const DIES_IN_DEADLOCKS: &'static str = "SELECT 1";

    /// How many sessions wait for a lock, where a deadlock's victim depends on who waits first.
    const WAITING: &'static str = "SELECT CAST(1 AS SIGNED)";

    /// How a session takes the table of the queues for itself, and gives it back; none where that would be
    /// the whole database.
    const LOCKS_QUEUES: Option<(&'static str, &'static str)> = None;

    /// How many sessions wait for a table.
    const WAITING_FOR_A_TABLE: &'static str = "SELECT 0";

    /// What a session says to be ended by its server; none where there is no server.
    const ENDS_ITSELF: Option<&'static str> = None;
}

macro_rules! dialect {
    ($database:ty, $connection:ty, { $($connect:tt)* }) => {
        impl Dialect for $database {
            $($connect)*

            async fn run(connection: &mut $connection, sql: String) -> Result<(), sqlx::Error> {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
            }

            async fn number(connection: &mut $connection, sql: String) -> Result<i64, sqlx::Error> {
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await
            }
        }
    };
}

/// As many connections as asked for, without a ping at each checkout.
fn options<DB: sqlx::Database>(connections: u32) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(20))
}

#[cfg(feature = "postgres")]
dialect!(sqlx::Postgres, sqlx::PgConnection, {
    const STRICTEST: &'static str = "SET default_transaction_isolation = 'serializable'";
    const PASSING: &[&str] = &["outbox_messages", "outbox_runs"];
    // A step takes many batches, and the next one more.
    const SMALL_BATCH: u32 = 4;
    const CHECKED_AT_COMMIT: &[&str] = &[
        "CREATE TABLE parents (seq BIGINT PRIMARY KEY)",
        "CREATE TABLE children (seq BIGINT REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
    ];
    const FINDS_DEADLOCKS_SOON: &'static str = "SET deadlock_timeout = '5ms'";
    // Who has waited for this long looks for a deadlock, once, and is its victim.
    const SURVIVES_DEADLOCKS: &'static str = "SET deadlock_timeout = '1min'";
    const DIES_IN_DEADLOCKS: &'static str = "SET LOCAL deadlock_timeout = '1ms'";
    const WAITING: &'static str = "SELECT COUNT(*) FROM pg_stat_activity \
                                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    const LOCKS_QUEUES: Option<(&'static str, &'static str)> = Some((
        "BEGIN; LOCK TABLE outbox_queues IN ACCESS EXCLUSIVE MODE",
        "ROLLBACK",
    ));
    const WAITING_FOR_A_TABLE: &'static str = Self::WAITING;
    const ENDS_ITSELF: Option<&'static str> = Some("SELECT pg_terminate_backend(pg_backend_pid())");
    const TRANSACTIONS: &[&[&str]] = &[
        &["BEGIN"],
        &["BEGIN ISOLATION LEVEL REPEATABLE READ"],
        &["BEGIN ISOLATION LEVEL SERIALIZABLE"],
        &[
            "SET default_transaction_isolation = 'serializable'",
            "BEGIN",
        ],
    ];

    async fn cut_connections(connection: &mut sqlx::PgConnection) -> Result<bool, sqlx::Error> {
        let cut = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        Self::number(connection, cut.to_owned()).await.map(|_| true)
    }

    async fn connect(url: &str, connections: u32) -> Pool<Self> {
        options(connections)
            .connect(url)
            .await
            .expect("connect to postgres")
    }
});

#[cfg(feature = "mysql")]
dialect!(sqlx::MySql, sqlx::MySqlConnection, {
    // It carries no signals: looking is all there is.
    const HEARD_WITHIN: Duration = Duration::from_millis(100);
    const STRICTEST: &'static str = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    const PASSING: &[&str] = &["outbox_messages", "outbox_runs", "outbox_incoming"];
    const DDL_COMMITS: bool = true;
    const LOCKS_QUEUES: Option<(&'static str, &'static str)> =
        Some(("LOCK TABLES outbox_queues WRITE", "UNLOCK TABLES"));
    const WAITING_FOR_A_TABLE: &'static str = "SELECT COUNT(*) FROM information_schema.processlist \
                                               WHERE db = DATABASE() AND state LIKE 'Waiting for %lock'";
    const ENDS_ITSELF: Option<&'static str> = Some("KILL CONNECTION_ID()");

    fn for_the_server(script: String) -> String {
        let script = script.replace("DELIMITER //", "").replace("END//", "END;");
        script.replace("DELIMITER ;", "")
    }

    async fn connect(url: &str, connections: u32) -> Pool<Self> {
        options(connections)
            .connect(url)
            .await
            .expect("connect to mysql or mariadb")
    }

    const TRANSACTIONS: &[&[&str]] = &[
        &["BEGIN"],
        &["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"],
        &["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"],
        &[
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "BEGIN",
        ],
    ];

    async fn cut_connections(connection: &mut sqlx::MySqlConnection) -> Result<bool, sqlx::Error> {
        let others = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                      WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let others: Vec<i64> = sqlx::query_scalar(others)
            .fetch_all(&mut *connection)
            .await?;
        for id in others {
            // It may have gone by itself meanwhile.
            let _ = Self::run(connection, format!("KILL {id}")).await;
        }
        Ok(true)
    }
});

#[cfg(feature = "sqlite")]
dialect!(sqlx::Sqlite, sqlx::SqliteConnection, {
    const BEGIN_WRITING: &'static str = "BEGIN IMMEDIATE";
    // There is nothing stricter than what it always does.
    const STRICTEST: &'static str = "SELECT 1";
    const PASSING: &[&str] = &["outbox_messages"];
    const CHECKED_AT_COMMIT: &[&str] = &[
        "CREATE TABLE parents (seq BIGINT PRIMARY KEY)",
        "CREATE TABLE children (seq BIGINT REFERENCES parents (seq) DEFERRABLE INITIALLY DEFERRED)",
    ];
    const TRANSACTIONS: &[&[&str]] = &[&["BEGIN"], &["BEGIN IMMEDIATE"], &["BEGIN EXCLUSIVE"]];
    const CONCURRENT_WRITERS: bool = false;

    async fn cut_connections(_: &mut sqlx::SqliteConnection) -> Result<bool, sqlx::Error> {
        Ok(false)
    }

    async fn connect(url: &str, connections: u32) -> Pool<Self> {
        let file = url
            .parse::<sqlx::sqlite::SqliteConnectOptions>()
            .expect("a sqlite url");
        let file = file
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        options(connections)
            .connect_with(file)
            .await
            .expect("open sqlite")
    }
});
