//! The conformance suite, and what is special here, on MySQL.
#![cfg(all(feature = "testing", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod log;
mod markers;
mod wire;

use conformance::stage::ONE;
use conformance::{Dialect as _, Stage};
use log::Log;
use testbed::{Server, with_database};
use tracing::Level;

conformance::suite!(sqlx::MySql, testbed::Server::MySql);
wire::suite!(sqlx::MySql, testbed::Server::MySql);
markers::suite!(testbed::Server::MySql);

#[tokio::test]
async fn payloads_are_not_logged() {
    with_database(Server::MySql, async |database| {
        let stage = Stage::<sqlx::MySql>::set(database).await;
        let handle = stage.outbox().queue("orders", ONE).produce_only();
        let handle = handle.start().await.unwrap();
        let (log, guard) = Log::keep(Level::TRACE);
        stage.enqueue(handle.outbox(), 0, &["secret"]).await;
        // Statements are logged.
        log.says(&["COMMIT"]).await;
        drop(guard);
        handle.stop().await;
        let log = log.text();
        for secret in ["secret", "736563726574"] {
            assert!(!log.contains(secret), "{log}");
        }
    })
    .await;
}

#[tokio::test]
async fn payloads_of_a_cancelled_enqueue_are_not_logged() {
    with_database(Server::MySql, async |database| {
        let stage = Stage::<sqlx::MySql>::set(database).await;
        let handle = stage.outbox().queue("orders", ONE).produce_only();
        let handle = handle.start().await.unwrap();
        let mut locked = stage.pool.acquire().await.unwrap();
        let lock = "LOCK TABLES outbox_messages WRITE".to_owned();
        sqlx::MySql::run(&mut locked, lock).await.unwrap();
        let (log, guard) = Log::keep(Level::TRACE);
        let waits = "SELECT COUNT(*) FROM information_schema.processlist \
                     WHERE db = DATABASE() AND state LIKE 'Waiting%' \
                       AND info LIKE 'INSERT INTO outbox_messages%'";
        tokio::select! {
            () = stage.enqueue(handle.outbox(), 0, &["secret"]) => panic!("it was locked"),
            () = stage.until(waits, 1) => {}
        }
        // Statements are logged, this one too.
        log.says(&["information_schema"]).await;
        drop(guard);
        locked.close().await.unwrap();
        handle.stop().await;
        let log = log.text();
        for secret in ["secret", "736563726574"] {
            assert!(!log.contains(secret), "{log}");
        }
    })
    .await;
}
