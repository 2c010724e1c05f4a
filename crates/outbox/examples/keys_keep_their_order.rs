//! Keyed ordering: many customers at once, over eight partitions, and each customer's orders arrive
//! in the order they were placed.
//!
//! `cargo run -p outbox --features sqlite --example keys_keep_their_order`

mod database;

use std::collections::HashMap;

use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxMessage, OutboxProfile, Partitions};
use tokio::sync::mpsc;

const CUSTOMERS: usize = 20;
const ORDERS: usize = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = database::open(folder.path()).await?;
    let (mailbox, mut mail) = mpsc::unbounded_channel();
    let handle = Outbox::builder(pool)
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .queue("orders", Partitions::of(8))
        .leased(move |message: OutboxMessage| {
            let delivered = mailbox.send(message);
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
    let outbox = handle.outbox();
    for order in 0..ORDERS {
        let placed: Vec<_> = (0..CUSTOMERS)
            .map(|customer| {
                EnqueueMessage::keyed(format!("customer-{customer}"), order.to_string(), "order")
            })
            .collect();
        outbox
            .transaction(async |transaction| {
                outbox.enqueue_batch(transaction, "orders", &placed).await
            })
            .await?;
    }

    let mut by_customer: HashMap<String, Vec<String>> = HashMap::new();
    for _ in 0..CUSTOMERS * ORDERS {
        let message = mail.recv().await.ok_or("the handler is gone")?;
        let order = String::from_utf8_lossy(&message.payload).into_owned();
        by_customer
            .entry(message.key.unwrap_or_default())
            .or_default()
            .push(order);
    }
    handle.stop().await;
    let in_order: Vec<_> = (0..ORDERS).map(|order| order.to_string()).collect();
    assert_eq!(by_customer.len(), CUSTOMERS);
    assert!(by_customer.values().all(|orders| *orders == in_order));
    println!("{CUSTOMERS} customers, {ORDERS} orders each, all in order");
    Ok(())
}
