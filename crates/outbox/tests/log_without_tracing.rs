//! An application that has a logger and knows nothing of `tracing`: it hears what the library and the
//! driver say, but no payloads. A binary of its own, for whoever uses `tracing` once uses it for the
//! whole process.
#![cfg(all(feature = "testing", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Mutex;

use log::{LevelFilter, Log, Metadata, Record};
use outbox::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use sqlx::mysql::MySqlPoolOptions;
use testbed::{Server, with_database};

/// Keeps every record.
struct Records(Mutex<Vec<String>>);

static RECORDS: Records = Records(Mutex::new(Vec::new()));

impl Log for Records {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

impl Records {
    fn say(&self, text: &str) -> bool {
        let records = self.0.lock().unwrap();
        records.iter().any(|record| record.contains(text))
    }
}

async fn an_enqueue_leaves_the_log_on_and_says_no_payload(server: Server) {
    let _ = log::set_logger(&RECORDS);
    log::set_max_level(LevelFilter::Trace);
    with_database(server, async |database| {
        let pool = MySqlPoolOptions::new().max_connections(4);
        let pool = pool.connect(database.url()).await.unwrap();
        let handle = Outbox::builder(pool.clone())
            .profile(OutboxProfile::low_latency())
            .auto_migrate()
            .queue("orders", Partitions::of(1))
            .produce_only()
            .start()
            .await
            .unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let mut ids = Vec::new();
        for count in [1, 3, 1] {
            let secret = EnqueueMessage::to(0, "secret", "text/plain").header("a", "secret");
            let enqueued = handle
                .outbox()
                .enqueue_batch(&mut transaction, "orders", &vec![secret; count])
                .await;
            ids.extend(enqueued.unwrap().iter().map(|id| id.0));
        }
        tracing::warn!("said on {server}");
        let stored = "SELECT m.id FROM outbox_messages m \
                      JOIN outbox_incoming i ON i.id = m.id AND i.size = 6 \
                      WHERE m.payload = 'secret' ORDER BY m.id";
        let stored = sqlx::query_scalar(stored).fetch_all(&mut *transaction);
        let stored: Vec<i64> = stored.await.unwrap();
        transaction.commit().await.unwrap();
        handle.stop().await;
        assert_eq!(stored, ids);
        assert!(RECORDS.say(&format!("said on {server}")));
        assert!(RECORDS.say("INSERT INTO outbox_messages"));
        assert!(!RECORDS.say("736563726574"), "that is secret");
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_leaves_the_log_on_and_says_no_payload_on_mariadb() {
    an_enqueue_leaves_the_log_on_and_says_no_payload(Server::MariaDb).await;
}

#[tokio::test]
async fn an_enqueue_leaves_the_log_on_and_says_no_payload_on_mysql() {
    an_enqueue_leaves_the_log_on_and_says_no_payload(Server::MySql).await;
}
