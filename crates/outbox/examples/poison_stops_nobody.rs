//! Retries and dead letters: one message fails twice and gets through, one is poison and ends as a
//! dead letter; the messages behind them are delivered, in order. Then the operator puts the dead
//! letter back.
//!
//! `cargo run -p outbox --features sqlite --example poison_stops_nobody`

mod database;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox::{
    DeadLetterFilter, EnqueueMessage, MessageResult, Outbox, OutboxMessage, OutboxProfile,
    Partitions,
};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = database::open(folder.path()).await?;
    let (mailbox, mut mail) = mpsc::unbounded_channel();
    let antidote = Arc::new(AtomicBool::new(false));
    let has_antidote = Arc::clone(&antidote);
    let handle = Outbox::builder(pool)
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .queue("mail", Partitions::of(1))
        .leased(move |message: OutboxMessage| {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            println!("attempt {} at {text}", message.attempts + 1);
            let result = match &*text {
                "shaky" if message.attempts < 2 => MessageResult::Retry,
                "poison" if !has_antidote.load(Ordering::SeqCst) => {
                    MessageResult::Reject("it is poison".into())
                }
                _ => {
                    let delivered = mailbox.send(text);
                    if delivered.is_ok() {
                        MessageResult::Ok
                    } else {
                        MessageResult::Retry
                    }
                }
            };
            async move { result }
        })
        .start()
        .await?;
    let outbox = handle.outbox();
    let letters = ["first", "shaky", "poison", "last"];
    let letters = letters.map(|text| EnqueueMessage::to(0, text, "letter"));
    outbox
        .transaction(async |transaction| outbox.enqueue_batch(transaction, "mail", &letters).await)
        .await?;
    for expected in ["first", "shaky", "last"] {
        assert_eq!(mail.recv().await.as_deref(), Some(expected));
    }

    // The last message was handed over; what became of the batch is written right after.
    let filter = DeadLetterFilter::new().queue("mail");
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while outbox.dead_letter_count(&filter).await? == 0 {
        look.tick().await;
    }
    let buried = outbox.dead_letter_list(&filter).await?;
    assert_eq!(buried.len(), 1, "only the poison, none of its neighbours");
    println!("dead letter {}: {}", buried[0].id, buried[0].last_error);
    antidote.store(true, Ordering::SeqCst);
    outbox.dead_letter_requeue(buried[0].id).await?;
    assert_eq!(mail.recv().await.as_deref(), Some("poison"));
    println!("delivered after all");
    handle.stop().await;
    Ok(())
}
