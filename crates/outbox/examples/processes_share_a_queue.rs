//! Two processes on one queue, each with half of the partitions, and no message delivered twice. The
//! "processes" are two outboxes with a pool each; on a server they would run on two machines.
//!
//! `cargo run -p outbox --features sqlite --example processes_share_a_queue`

mod database;

use std::collections::HashSet;

use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxMessage, OutboxProfile, Partitions};
use tokio::sync::mpsc;

const MESSAGES: usize = 400;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (mailbox, mut mail) = mpsc::unbounded_channel();
    let mut processes = Vec::new();
    for name in ["left", "right"] {
        let mailbox = mailbox.clone();
        let process = Outbox::builder(database::open(folder.path()).await?)
            .auto_migrate()
            .profile(OutboxProfile::low_latency())
            .queue("orders", Partitions::of(16))
            .leased(move |message: OutboxMessage| {
                let delivered = mailbox.send((name, message.id));
                async move {
                    if delivered.is_ok() {
                        MessageResult::Ok
                    } else {
                        MessageResult::Retry
                    }
                }
            })
            .start()
            .await?;
        processes.push(process);
    }
    // Each announces itself every second and takes its share of the partitions from then on.
    let pool = database::open(folder.path()).await?;
    let mut look = tokio::time::interval(std::time::Duration::from_millis(50));
    let mut smaller_share = 0;
    while smaller_share < 3 {
        look.tick().await;
        let outbox = processes[0].outbox();
        let batch: Vec<_> = (0..16)
            .map(|p| EnqueueMessage::to(p, "warm up", "order"))
            .collect();
        outbox
            .transaction(async |transaction| {
                outbox.enqueue_batch(transaction, "orders", &batch).await
            })
            .await?;
        let shares = "SELECT CASE COUNT(*) WHEN 2 THEN MIN(share) ELSE 0 END FROM \
                      (SELECT COUNT(*) AS share FROM outbox_processors \
                       WHERE holder IS NOT NULL GROUP BY holder)";
        smaller_share = sqlx::query_scalar::<_, i64>(shares)
            .fetch_one(&pool)
            .await?;
    }

    let outbox = processes[1].outbox();
    let batch: Vec<_> = (0..MESSAGES)
        .map(|n| EnqueueMessage::keyed(n.to_string(), "order", "order"))
        .collect();
    let ids: HashSet<_> = outbox
        .transaction(async |transaction| outbox.enqueue_batch(transaction, "orders", &batch).await)
        .await?
        .into_iter()
        .collect();
    let (mut left, mut right, mut seen) = (0, 0, HashSet::new());
    while seen.len() < MESSAGES {
        let (name, id) = mail.recv().await.ok_or("the handlers are gone")?;
        if !ids.contains(&id) {
            continue;
        }
        assert!(seen.insert(id), "no message twice");
        *(if name == "left" {
            &mut left
        } else {
            &mut right
        }) += 1;
    }
    for process in processes {
        process.stop().await;
    }
    println!("left delivered {left}, right {right}");
    assert!(left > 0 && right > 0);
    Ok(())
}
