//! Migrations: up, down and up again, from code or as plain SQL, beside producers at work.

use std::time::Duration;

use outbox::{OutboxError, Schema, TablePrefix};
use tokio::time::Instant;

use super::stage::{ONE, refusal, text_message};
use super::{Collector, Dialect, Stage};

pub(crate) async fn migrations_go_up_and_down_and_up_again<DB: Dialect>(stage: &Stage<DB>) {
    let prefix: TablePrefix = "my_app_".parse().unwrap();
    let schema = Schema::new(stage.pool.clone(), &prefix);
    let start = || {
        let builder = outbox::Outbox::builder(stage.pool.clone()).table_prefix("my_app_");
        builder.queue("orders", ONE).leased(Collector::new())
    };
    let error = refusal(start()).await;
    assert!(
        matches!(error, OutboxError::SchemaVersion { found: 0, .. }),
        "{error}"
    );
    for _ in 0..2 {
        for _ in 0..2 {
            schema.up().await.unwrap();
            assert_eq!(schema.version().await.unwrap(), Schema::<DB>::VERSION);
        }
        start().start().await.unwrap().stop().await;
        for _ in 0..2 {
            schema.down().await.unwrap();
            assert_eq!(schema.version().await.unwrap(), 0);
        }
    }
}

pub(crate) async fn plain_sql_makes_the_same_schema<DB: Dialect>(stage: &Stage<DB>) {
    let prefix = TablePrefix::default();
    let script = DB::for_the_server(Schema::<DB>::up_sql(&prefix));
    stage.run(script).await;
    let schema = Schema::new(stage.pool.clone(), &prefix);
    assert_eq!(schema.version().await.unwrap(), Schema::<DB>::VERSION);
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    stage.enqueue(handle.outbox(), 0, &["delivered"]).await;
    collector.wait_for(1).await;
    handle.stop().await;
    stage.run(Schema::<DB>::down_sql(&prefix)).await;
    assert_eq!(schema.version().await.unwrap(), 0);
}

pub(crate) async fn a_removal_gives_way_to_producers<DB: Dialect>(stage: &Stage<DB>) {
    let queue = stage.outbox().queue("orders", ONE).produce_only();
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let mut open = stage.pool.begin().await.unwrap();
    let message = || text_message(0, "x");
    outbox
        .enqueue(&mut open, "orders", message())
        .await
        .unwrap();
    let schema = Schema::new(stage.another_pool(2).await, &TablePrefix::default());
    let removal = tokio::spawn(async move { schema.down().await });
    if DB::CONCURRENT_WRITERS {
        // The removal waits for the open transaction; others must not wait behind it for long.
        let started = Instant::now();
        let mut slowest = Duration::ZERO;
        while started.elapsed() < Duration::from_secs(2) {
            let began = Instant::now();
            let mut other = stage.pool.begin().await.unwrap();
            outbox
                .enqueue(&mut other, "orders", message())
                .await
                .unwrap();
            other.commit().await.unwrap();
            slowest = slowest.max(began.elapsed());
        }
        assert!(
            slowest < Duration::from_millis(1900),
            "a producer waited for {slowest:?}"
        );
    }
    assert!(!removal.is_finished());
    open.commit().await.unwrap();
    removal.await.unwrap().unwrap();
    let schema = Schema::new(stage.pool.clone(), &TablePrefix::default());
    assert_eq!(schema.version().await.unwrap(), 0);
    handle.stop().await;
}
