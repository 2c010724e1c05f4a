//! An application with a dashboard inside: a shop whose carrier is away, and some of whose addresses do not
//! exist. Delete `carrier-is-away` or `addresses-are-wrong` in the folder that it prints, and watch what
//! becomes of it.

use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use outbox::{
    EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxProfile, Partitions, WorkerTuning,
};
use outbox_dashboard::{Access, Dashboard, Rights};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

const QUEUE: &str = "orders";

/// Brings what was ordered, unless something is in the way.
struct Courier {
    folder: PathBuf,
}

impl Courier {
    fn is(&self, what: &str) -> bool {
        self.folder.join(what).exists()
    }
}

impl LeasedHandler for Courier {
    async fn handle(&self, batch: &mut outbox::Batch<'_>) -> HandlerResult {
        while let Some(message) = batch.next_msg() {
            if message.payload_type == "order.wrong" && self.is("addresses-are-wrong") {
                batch.reject(message, "no such address: 7 Nowhere Lane");
                continue;
            }
            if message.partition == 3 && self.is("carrier-is-away") {
                return HandlerResult::Retry {
                    reason: "connection refused: the carrier does not answer".to_owned(),
                };
            }
            batch.ack(message);
        }
        HandlerResult::Success
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    for what in ["carrier-is-away", "addresses-are-wrong"] {
        std::fs::write(folder.path().join(what), "")?;
    }
    let file = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePoolOptions::new().connect_with(file).await?;
    let courier = Courier {
        folder: folder.path().to_owned(),
    };
    let patient = WorkerTuning::processor_low_latency().retry_max(Duration::from_secs(2));
    let handle = Outbox::builder(pool)
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .processor_tuning(patient)
        .queue(QUEUE, Partitions::of(16))
        .batch_leased(courier)
        .start()
        .await?;

    let everything = Rights {
        operate: true,
        payloads: true,
    };
    let dashboard = Dashboard::new(handle.outbox().clone())
        .name("shop")
        .access(Access::everybody(everything))
        .local();
    let application = Router::new().nest("/outbox", dashboard.router());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("folder {}", folder.path().display());
    println!("dashboard http://{}/outbox", listener.local_addr()?);
    tokio::select! {
        served = axum::serve(listener, application) => served?,
        sold = sell(handle.outbox().clone()) => sold?,
        () = ended() => {}
    }
    handle.stop().await;
    Ok(())
}

/// Sells until it is told to stop.
async fn sell(outbox: Outbox<sqlx::Sqlite>) -> Result<(), outbox::OutboxError> {
    let mut pause = tokio::time::interval(Duration::from_millis(40));
    for number in 1_u64.. {
        pause.tick().await;
        let kind = match number % 50 {
            0 => "order.wrong",
            _ => "order.placed",
        };
        let order = format!(
            r#"{{"order":{number},"item":"a loom","amount":{}}}"#,
            number % 7 + 1
        );
        let trace = format!(
            "00-{:032x}-{number:016x}-01",
            u128::from(number) << 64 | 0xfeed
        );
        let message = EnqueueMessage::keyed(format!("customer-{}", number % 97), order, kind)
            .header("traceparent", trace);
        outbox
            .transaction(async |connection| outbox.enqueue(connection, QUEUE, message).await)
            .await?;
    }
    Ok(())
}

/// Ends with its standard input, or with Ctrl-C.
async fn ended() {
    use tokio::io::AsyncReadExt as _;
    let (mut input, mut rest) = (tokio::io::stdin(), Vec::new());
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = input.read_to_end(&mut rest) => {}
    }
}
