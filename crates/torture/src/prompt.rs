//! How soon a message comes whose transaction announces it, when nothing else goes on.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox::{
    EnqueueMessage, LeasedMessageHandler, MessageResult, OutboxError, OutboxMessage, Partitions,
};
use sqlx::Pool;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use crate::dialect::Dialect;
use crate::worker::{builder, started};

const ROUNDS: usize = 25;
const QUEUE: &str = "prompt";

struct Told(UnboundedSender<Instant>);

impl LeasedMessageHandler for Told {
    async fn handle(&self, _: &OutboxMessage) -> MessageResult {
        let _ = self.0.send(Instant::now());
        MessageResult::Ok
    }
}

/// From a commit's return to the handler, in milliseconds, one after the other.
pub(crate) async fn waits<DB: Dialect>(pool: &Pool<DB>) -> Result<Vec<i64>> {
    let (sender, mut told) = unbounded_channel();
    let start = async || {
        builder(pool.clone())
            .table_prefix("prompt_")
            .auto_migrate()
            .queue(QUEUE, Partitions::of(1))
            .leased(Told(sender.clone()))
            .start()
            .await
    };
    let handle = started(start).await?;
    let slow = DB::SLOW_COMMITS.to_owned();
    DB::run(&mut *pool.acquire().await?, slow).await?;
    let outbox = handle.outbox();
    let mut waits = Vec::new();
    // The first one has to wait for the lease.
    for round in 0..=ROUNDS {
        let enqueue = async |connection: &mut DB::Connection| {
            let message = EnqueueMessage::to(0, "now", "torture");
            outbox.enqueue(connection, QUEUE, message).await?;
            // What was announced too early was looked for by then.
            let slowly = DB::COMMIT_SLOWLY.to_owned();
            Ok::<_, OutboxError>(DB::run(connection, slowly).await?)
        };
        outbox.transaction(enqueue).await?;
        let since = Instant::now();
        let came = timeout(Duration::from_secs(10), told.recv()).await;
        let came = came.context("a message in a quiet database does not come")?;
        let waited = came.map_or(Duration::ZERO, |came| came.saturating_duration_since(since));
        if round > 0 {
            waits.push(i64::try_from(waited.as_millis())?);
        }
    }
    handle.stop().await;
    waits.sort_unstable();
    Ok(waits)
}
