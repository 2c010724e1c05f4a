//! Crash and take-over: a process of its own handles messages and is killed in the middle; another
//! takes over when its lease has run out, and nothing is lost.
//!
//! `cargo run -p outbox --features sqlite --example survives_a_crash`

mod database;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use outbox::{
    EnqueueMessage, LeaseConfig, MessageResult, Outbox, OutboxMessage, OutboxProfile, Partitions,
};
use sqlx::SqlitePool;
use tokio::sync::mpsc;

const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_secs(2),
    headroom: Duration::from_millis(500),
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::args_os().nth(1) {
        return victim(folder.into()).await;
    }
    let folder = tempfile::tempdir()?;
    let pool = database::open(folder.path()).await?;
    let producer = builder(&pool)
        .queue("orders", Partitions::of(1))
        .produce_only()
        .start()
        .await?;
    let orders: Vec<_> = (0..5)
        .map(|n| EnqueueMessage::to(0, n.to_string(), "order"))
        .collect();
    producer
        .outbox()
        .transaction(async |transaction| {
            producer
                .outbox()
                .enqueue_batch(transaction, "orders", &orders)
                .await
        })
        .await?;
    producer.stop().await;

    let mut victim = Command::new(std::env::current_exe()?)
        .arg(folder.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = BufReader::new(victim.stdout.take().ok_or("no output")?).lines();
    for line in said {
        let line = line?;
        println!("{line}");
        if line.ends_with("order 2") {
            break;
        }
    }
    victim.kill()?;
    victim.wait()?;
    println!("killed it in the middle of order 2");

    let (mailbox, mut mail) = mpsc::unbounded_channel();
    let heir = builder(&pool)
        .queue("orders", Partitions::of(1))
        .leased(move |message: OutboxMessage| {
            let order = String::from_utf8_lossy(&message.payload).into_owned();
            let delivered = mailbox.send(order);
            async move {
                if delivered.is_ok() {
                    MessageResult::Ok
                } else {
                    MessageResult::Retry
                }
            }
        })
        .lease(LEASE)
        .start()
        .await?;
    let mut delivered = Vec::new();
    while delivered.last().map(String::as_str) != Some("4") {
        delivered.push(mail.recv().await.ok_or("the handler is gone")?);
    }
    heir.stop().await;
    println!("the next process delivered orders {}", delivered.join(", "));
    assert!(
        delivered.windows(2).all(|pair| pair[0] < pair[1]),
        "in order"
    );
    assert!(delivered.contains(&"2".to_owned()), "order 2 was not lost");
    Ok(())
}

fn builder(pool: &SqlitePool) -> outbox::OutboxBuilder<sqlx::Sqlite> {
    Outbox::builder(pool.clone())
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
}

/// The process that is killed: it hangs at order 2.
async fn victim(folder: std::path::PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let pool = database::open(&folder).await?;
    let _handle = builder(&pool)
        .queue("orders", Partitions::of(1))
        .leased(handle_or_hang)
        .lease(LEASE)
        .start()
        .await?;
    std::future::pending().await
}

async fn handle_or_hang(message: OutboxMessage) -> MessageResult {
    println!(
        "the first process handles order {}",
        String::from_utf8_lossy(&message.payload)
    );
    if message.payload == b"2" {
        std::future::pending::<()>().await;
    }
    MessageResult::Ok
}
