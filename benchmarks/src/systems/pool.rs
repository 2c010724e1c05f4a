//! The pool every system of this program uses: the same size, all connections open before the clock
//! runs, no ping on checkout.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::Result;
use bench_contract::Task;
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Database, MySql, Pool, Postgres, Sqlite};

/// How long SQLite waits for the write lock; scripts and the reference's address say the same.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A database this program can open a pool on.
pub(crate) trait Open: Database {
    /// Opens it.
    fn open(task: &Task) -> impl Future<Output = Result<Pool<Self>>> + Send;
}

fn options<DB: Database>(task: &Task) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(task.pool)
        .min_connections(task.pool)
        .acquire_timeout(Duration::from_secs(60))
        .test_before_acquire(false)
}

impl Open for Postgres {
    async fn open(task: &Task) -> Result<Pool<Self>> {
        Ok(options(task).connect(&task.url).await?)
    }
}

impl Open for MySql {
    async fn open(task: &Task) -> Result<Pool<Self>> {
        Ok(options(task).connect(&task.url).await?)
    }
}

impl Open for Sqlite {
    async fn open(task: &Task) -> Result<Pool<Self>> {
        let connect = SqliteConnectOptions::from_str(&task.url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        Ok(options(task).connect_with(connect).await?)
    }
}
