//! What the bed asks of a database beside the outbox: pools, plain statements, rows of numbers.

use std::future::Future;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use outbox::Backend;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool, Row as _};

/// How long everybody waits for SQLite's write lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a pool asks a connection whether it works before it hands it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ping {
    /// As sqlx does unless told otherwise.
    AtCheckout,
    /// A connection that broke meanwhile is found out the hard way.
    Never,
}

/// A database as the bed sees it. Every column it reads is a number.
pub(crate) trait Dialect: Backend {
    /// A pool as an application would set it up.
    fn pool(
        url: &str,
        connections: u32,
        ping: Ping,
    ) -> impl Future<Output = sqlx::Result<Pool<Self>>> + Send;

    /// Runs statements.
    fn run(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// All rows of a query.
    fn rows<const N: usize>(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = sqlx::Result<Vec<[i64; N]>>> + Send;

    /// Whether others can write while a transaction that has written is open.
    const CONCURRENT: bool = true;
    /// How a transaction begins that is going to write.
    const BEGIN_WRITING: &'static str = "BEGIN";
    /// A number that the database gives each row.
    const NUMBERED: &'static str;
    /// The type that makes 64 bits of a number.
    const LONG: &'static str;
    /// The time of the leases.
    const NOW: &'static str;
    /// A COMMIT on the wire, and not a BEGIN that says READ COMMITTED.
    const COMMIT: &'static [u8] = b"COMMIT";
    /// How many others are connected to this database.
    const OTHERS: &'static str;
    /// Writes into `setbacks` whenever an epoch or a cursor goes back.
    const SETBACKS: &'static str;
    /// The tables that are empty once everything is settled and swept.
    const PASSING: &'static [&'static str];
    /// Says how soon a session looks for deadlocks.
    const DEADLOCKS_SOON: &'static str = "SELECT 1";
    /// What an announced message may take in a quiet database, in milliseconds. Less than it takes until
    /// somebody looks by himself, where commits can be made slow enough to tell the two apart.
    const AT_ONCE: i64 = 100;
    /// Prepares commits that take their time, where that can be had.
    const SLOW_COMMITS: &'static str = "SELECT 1";
    /// Makes the commit of its transaction one of them.
    const COMMIT_SLOWLY: &'static str = "SELECT 1";
    /// Says that somebody is in nobody's way: a transaction that forgot to end.
    const HELD: &'static str = "BEGIN";
}

macro_rules! dialect {
    ($database:ty, $connection:ty, { $($own:tt)* }) => {
        impl Dialect for $database {
            $($own)*

            async fn run(connection: &mut $connection, sql: String) -> sqlx::Result<()> {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
            }

            async fn rows<const N: usize>(
                connection: &mut $connection,
                sql: String,
            ) -> sqlx::Result<Vec<[i64; N]>> {
                let mut found = sqlx::query(AssertSqlSafe(sql)).fetch(connection);
                let mut rows = Vec::new();
                while let Some(row) = found.try_next().await? {
                    let mut numbers = [0; N];
                    for (place, number) in numbers.iter_mut().enumerate() {
                        *number = row.try_get(place)?;
                    }
                    rows.push(numbers);
                }
                Ok(rows)
            }
        }
    };
}

fn options<DB: sqlx::Database>(connections: u32, ping: Ping) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(ping == Ping::AtCheckout)
        .acquire_timeout(PATIENCE / 2)
}

dialect!(sqlx::Postgres, sqlx::PgConnection, {
    const NUMBERED: &'static str = "BIGINT GENERATED ALWAYS AS IDENTITY";
    const LONG: &'static str = "BIGINT";
    const COMMIT: &'static [u8] = b"COMMIT\0";
    const AT_ONCE: i64 = 30;
    const SETBACKS: &'static str = "CREATE FUNCTION setback() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN INSERT INTO setbacks VALUES (OLD.partition_id, OLD.epoch, NEW.epoch, \
        OLD.processed_seq, NEW.processed_seq); RETURN NULL; END'; \
        CREATE TRIGGER setback AFTER UPDATE ON outbox_processors FOR EACH ROW \
        WHEN (NEW.epoch < OLD.epoch OR NEW.processed_seq < OLD.processed_seq) \
        EXECUTE FUNCTION setback()";
    const NOW: &'static str = "(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000)::bigint";
    const OTHERS: &'static str = "SELECT COUNT(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid() \
        AND backend_type = 'client backend'";
    const PASSING: &'static [&'static str] = &["outbox_messages", "outbox_runs"];
    const DEADLOCKS_SOON: &'static str = "SET deadlock_timeout = '5ms'";
    const SLOW_COMMITS: &'static str = "CREATE TABLE slow (number INT); \
        CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql \
        AS 'BEGIN PERFORM pg_sleep(0.03); RETURN NULL; END'; \
        CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON slow \
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow_commit()";
    const COMMIT_SLOWLY: &'static str = "INSERT INTO slow VALUES (1)";
    const HELD: &'static str =
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT COUNT(*) FROM effects";

    async fn pool(url: &str, connections: u32, ping: Ping) -> sqlx::Result<Pool<Self>> {
        options(connections, ping).connect_lazy(url)
    }
});

dialect!(sqlx::MySql, sqlx::MySqlConnection, {
    const NUMBERED: &'static str = "BIGINT NOT NULL AUTO_INCREMENT, PRIMARY KEY (place)";
    const LONG: &'static str = "SIGNED";
    const COMMIT: &'static [u8] = b"\x03COMMIT";
    const SETBACKS: &'static str = "CREATE TRIGGER setback AFTER UPDATE ON outbox_processors \
        FOR EACH ROW INSERT INTO setbacks SELECT OLD.partition_id, OLD.epoch, NEW.epoch, \
        OLD.processed_seq, NEW.processed_seq FROM DUAL \
        WHERE NEW.epoch < OLD.epoch OR NEW.processed_seq < OLD.processed_seq";
    const NOW: &'static str = "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', \
                               UTC_TIMESTAMP(3)) DIV 1000)";
    const OTHERS: &'static str = "SELECT COUNT(*) FROM information_schema.processlist \
                                  WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    const PASSING: &'static [&'static str] = &["outbox_messages", "outbox_runs", "outbox_incoming"];
    const HELD: &'static str =
        "START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT COUNT(*) FROM effects";

    async fn pool(url: &str, connections: u32, ping: Ping) -> sqlx::Result<Pool<Self>> {
        options(connections, ping).connect_lazy(url)
    }
});

dialect!(sqlx::Sqlite, sqlx::SqliteConnection, {
    const CONCURRENT: bool = false;
    const BEGIN_WRITING: &'static str = "BEGIN IMMEDIATE";
    const NUMBERED: &'static str = "INTEGER PRIMARY KEY";
    const LONG: &'static str = "BIGINT";
    const NOW: &'static str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
    // Whether anybody still reads or writes: then the log cannot be cut off.
    const OTHERS: &'static str = "PRAGMA wal_checkpoint(TRUNCATE)";
    const SETBACKS: &'static str = "CREATE TRIGGER setback AFTER UPDATE ON outbox_processors \
        WHEN NEW.epoch < OLD.epoch OR NEW.processed_seq < OLD.processed_seq \
        BEGIN INSERT INTO setbacks VALUES (OLD.partition_id, OLD.epoch, NEW.epoch, \
        OLD.processed_seq, NEW.processed_seq); END";
    const PASSING: &'static [&'static str] = &["outbox_messages"];
    // It reads, and so keeps the log from being cut off.
    const HELD: &'static str = "BEGIN; SELECT COUNT(*) FROM effects";

    async fn pool(url: &str, connections: u32, ping: Ping) -> sqlx::Result<Pool<Self>> {
        let file = url.parse::<sqlx::sqlite::SqliteConnectOptions>()?;
        let file = file
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(PATIENCE);
        // Who waits for the lock keeps a connection meanwhile.
        let options = options(connections, ping).acquire_timeout(PATIENCE);
        Ok(options.connect_lazy_with(file))
    }
});
