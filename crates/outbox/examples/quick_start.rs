//! An order service: the order and its message commit together, and a handler hears of every order
//! that was really placed.
//!
//! `cargo run -p outbox --features sqlite --example quick_start`

mod database;

use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessage, Partitions};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = database::open(folder.path()).await?;
    sqlx::query("CREATE TABLE orders (customer TEXT, item TEXT)")
        .execute(&pool)
        .await?;

    let (mailbox, mut mail) = mpsc::unbounded_channel();
    let handle = Outbox::builder(pool)
        .auto_migrate()
        .queue("orders", Partitions::of(4))
        .leased(move |message: OutboxMessage| {
            let delivered = mailbox.send(String::from_utf8_lossy(&message.payload).into_owned());
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

    for (customer, item, solvent) in [
        ("ada", "a loom", true),
        ("charles", "an engine", false),
        ("ada", "punch cards", true),
    ] {
        let placed = outbox
            .transaction(async |transaction| {
                sqlx::query("INSERT INTO orders VALUES (?, ?)")
                    .bind(customer)
                    .bind(item)
                    .execute(&mut *transaction)
                    .await
                    .map_err(OutboxError::from)?;
                let text = format!("{customer} ordered {item}");
                let message = EnqueueMessage::keyed(customer, text, "order.placed");
                outbox.enqueue(transaction, "orders", message).await?;
                if solvent {
                    Ok(())
                } else {
                    Err(Refusal::NoMoney)
                }
            })
            .await;
        println!(
            "{customer}: {}",
            if placed.is_ok() {
                "committed"
            } else {
                "rolled back"
            }
        );
    }

    for expected in ["ada ordered a loom", "ada ordered punch cards"] {
        let delivered = mail.recv().await.ok_or("the handler is gone")?;
        println!("delivered: {delivered}");
        assert_eq!(delivered, expected);
    }
    handle.stop().await;
    assert!(
        mail.try_recv().is_err(),
        "nothing was delivered that was rolled back"
    );
    Ok(())
}

enum Refusal {
    NoMoney,
    #[expect(dead_code, reason = "a real service would log it")]
    Outbox(OutboxError),
}

impl From<OutboxError> for Refusal {
    fn from(error: OutboxError) -> Self {
        Self::Outbox(error)
    }
}
