//! A ledger: the handler books each payment in the transaction that settles the message. It fails
//! now and then, half-way through its writes, and still every payment is booked exactly once.
//!
//! `cargo run -p outbox --features sqlite --example effects_happen_exactly_once`

mod database;

use std::time::Duration;

use outbox::{
    EnqueueMessage, MessageResult, Outbox, OutboxMessage, OutboxProfile, Partitions,
    TransactionalMessageHandler, WorkerTuning,
};
use sqlx::{Sqlite, SqliteConnection};

const PAYMENTS: i64 = 50;

struct Ledger;

impl TransactionalMessageHandler<Sqlite> for Ledger {
    async fn handle(
        &self,
        connection: &mut SqliteConnection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let booked = sqlx::query("INSERT INTO bookings (payment) VALUES (?)")
            .bind(message.seq)
            .execute(connection)
            .await;
        // Every tenth payment fails at first, after it was booked: the booking is undone with it.
        if booked.is_err() || (message.seq % 10 == 0 && message.attempts == 0) {
            return MessageResult::Retry;
        }
        MessageResult::Ok
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = database::open(folder.path()).await?;
    sqlx::query("CREATE TABLE bookings (payment INTEGER)")
        .execute(&pool)
        .await?;

    let impatient = WorkerTuning::processor_low_latency().retry_base(Duration::from_millis(10));
    let handle = Outbox::builder(pool.clone())
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .processor_tuning(impatient)
        .queue("payments", Partitions::of(1))
        .transactional(Ledger)
        .start()
        .await?;
    let outbox = handle.outbox();
    let payments: Vec<_> = (0..PAYMENTS)
        .map(|n| EnqueueMessage::to(0, n.to_string(), "payment"))
        .collect();
    outbox
        .transaction(async |transaction| {
            outbox
                .enqueue_batch(transaction, "payments", &payments)
                .await
        })
        .await?;

    let settled = "SELECT processed_seq FROM outbox_processors";
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while sqlx::query_scalar::<_, i64>(settled)
        .fetch_one(&pool)
        .await?
        < PAYMENTS
    {
        look.tick().await;
    }
    handle.stop().await;
    let count = "SELECT COUNT(*), COUNT(DISTINCT payment) FROM bookings";
    let (bookings, payments): (i64, i64) = sqlx::query_as(count).fetch_one(&pool).await?;
    println!("{bookings} bookings of {payments} payments, with a failure at every tenth");
    assert_eq!((bookings, payments), (PAYMENTS, PAYMENTS));
    Ok(())
}
