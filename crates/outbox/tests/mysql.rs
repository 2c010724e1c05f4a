//! The conformance suite, and what is special here, on MySQL.
#![cfg(all(feature = "testing", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod markers;
mod wire;

use std::sync::{Arc, Mutex};

use conformance::Stage;
use conformance::stage::ONE;
use testbed::{Server, with_database};

conformance::suite!(sqlx::MySql, testbed::Server::MySql);
wire::suite!(sqlx::MySql, testbed::Server::MySql);
markers::suite!(testbed::Server::MySql);

/// What the library and its driver log on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn payloads_are_not_logged() {
    with_database(Server::MySql, async |database| {
        let stage = Stage::<sqlx::MySql>::set(database).await;
        let handle = stage.outbox().queue("orders", ONE).produce_only();
        let handle = handle.start().await.unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        stage.enqueue(handle.outbox(), 0, &["secret"]).await;
        drop(guard);
        handle.stop().await;
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(log.contains("COMMIT"), "statements are logged: {log}");
        for secret in ["secret", "736563726574"] {
            assert!(!log.contains(secret), "{log}");
        }
    })
    .await;
}
