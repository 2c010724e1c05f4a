//! An outbox whose messages go to a sink.

use std::time::Duration;

use outbox::{EnqueueMessage, Outbox, OutboxHandle, OutboxProfile, Partitions, WorkerTuning};
use outbox_sinks::{Sink, SinkExt as _};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Sqlite, SqlitePool};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::patience;

/// An outbox of its own.
pub(crate) struct Source {
    _folder: TempDir,
    pub(crate) handle: OutboxHandle<Sqlite>,
}

impl Source {
    pub(crate) async fn to(sink: impl Sink) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder).await;
        let processor = WorkerTuning::processor_low_latency()
            .batch_size(100)
            .retry_base(Duration::from_millis(20))
            .retry_max(Duration::from_millis(200));
        let handle = Outbox::builder(pool)
            .auto_migrate()
            .profile(OutboxProfile::low_latency())
            .processor_tuning(processor)
            .queue("orders", Partitions::of(4))
            .sink(sink)
            .start()
            .await
            .unwrap();
        Self {
            _folder: folder,
            handle,
        }
    }

    pub(crate) async fn enqueue(&self, messages: &[EnqueueMessage]) {
        enqueue(&self.handle, messages).await;
    }

    /// Waits until so many are settled.
    pub(crate) async fn settled(&self, count: usize) {
        let until = Instant::now() + patience(count);
        let count = i64::try_from(count).unwrap();
        loop {
            let stats = self.handle.outbox().stats().await.unwrap();
            let settled: i64 = stats.iter().map(|one| one.processed_seq).sum();
            if settled == count {
                return;
            }
            assert!(
                Instant::now() < until,
                "{settled} of {count} settled: {stats:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) async fn pool(folder: &TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("outbox.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(10));
    SqlitePool::connect_with(options).await.unwrap()
}

/// A thousand per transaction.
pub(crate) async fn enqueue(handle: &OutboxHandle<Sqlite>, messages: &[EnqueueMessage]) {
    let outbox = handle.outbox();
    for some in messages.chunks(1_000) {
        outbox
            .transaction(async |connection: &mut sqlx::SqliteConnection| {
                outbox.enqueue_batch(connection, "orders", some).await
            })
            .await
            .unwrap();
    }
}

/// Messages of eight keys, numbered.
pub(crate) fn numbered(numbers: std::ops::Range<u32>) -> Vec<EnqueueMessage> {
    numbers
        .map(|number| {
            let key = format!("key-{}", number % 8);
            EnqueueMessage::keyed(key, number.to_string(), "order.placed")
        })
        .collect()
}
