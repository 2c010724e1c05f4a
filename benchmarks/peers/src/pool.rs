//! The pool of those peers that let us choose: the same as everybody's.

use std::time::Duration;

use anyhow::Result;
use bench_contract::{Message, Task};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub(crate) async fn open(task: &Task) -> Result<PgPool> {
    let options = PgPoolOptions::new()
        .max_connections(task.pool)
        .min_connections(task.pool)
        .acquire_timeout(Duration::from_secs(60))
        .test_before_acquire(false);
    Ok(options.connect(&task.url).await?)
}

/// A payload as text, for those that take nothing else.
pub(crate) fn text(message: &Message) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}
