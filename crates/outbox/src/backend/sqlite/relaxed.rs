//! Connections of our own whose commits do not wait for the disk. What is written through them may be
//! undone when the power fails, as if it had come a moment later: which numbers were given, the acks of
//! leased handlers, what was removed. The log keeps its order, so nothing that stays rests on what went.

use std::sync::Arc;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::SqliteSynchronous;
use sqlx::{SqlSafeStr as _, Sqlite};
use tokio::sync::OnceCell;

use crate::backend::{Answer, Backend as _, Lane, OwnTransaction, Store};

/// As many as there are verbs that use them, and one more.
const CONNECTIONS: u32 = 4;
/// What `PRAGMA synchronous` answers where every commit waits for the disk; less is less.
const FULL: i64 = 2;

/// Made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Relaxed(OnceCell<Arc<Lane<Sqlite>>>);

/// Without a log a commit that does not wait could spoil the file, and in memory there is no disk: then it
/// is the lane that everything else takes.
pub(super) async fn lane(store: &Store<Sqlite>) -> Answer<&Arc<Lane<Sqlite>>> {
    let make = async || {
        let mut connection = store.pool.acquire().await?;
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut *connection)
            .await?;
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut *connection)
            .await?;
        if !journal.eq_ignore_ascii_case("wal") || synchronous < FULL {
            return Ok(Arc::clone(&store.workers));
        }
        let options = store.pool.connect_options();
        let options = (*options).clone().synchronous(SqliteSynchronous::Normal);
        let pool = PoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .acquire_timeout(store.pool.options().get_acquire_timeout())
            .connect_lazy_with(options);
        Ok(store.workers.beside(&pool))
    };
    store.shared.relaxed.0.get_or_try_init(make).await
}

pub(super) async fn begin(store: &Store<Sqlite>) -> Answer<OwnTransaction<Sqlite>> {
    let lane = lane(store).await?;
    OwnTransaction::begin(lane, Sqlite::BEGIN.into_sql_str()).await
}
