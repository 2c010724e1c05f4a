//! `outbox demo`: a little shop on embedded SQLite. Orders are placed in transactions, some of which
//! are rolled back; a flaky handler delivers them; one order is poison. At the end the books are
//! compared: what was committed was delivered, in order, and nothing else.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox::{
    DeadLetterFilter, EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxHandle,
    OutboxMessage, OutboxProfile, Partitions,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};
use tokio::time::Instant;

/// Show what the outbox does, on embedded SQLite, without any set-up
///
/// A little shop places orders in transactions, some of them rolled back; a handler that fails now
/// and then delivers them; one order is poison. Then the books are compared. Exit code 1 if they do
/// not agree.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many orders to place
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    orders: u32,
}

const CUSTOMERS: u32 = 20;
/// How long the demo waits for the last order.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the handler delivered, in the order it did.
type Deliveries = Arc<Mutex<Vec<(String, u32)>>>;

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let pool = open(folder.path()).await?;
    sqlx::query("CREATE TABLE orders (number INTEGER, customer TEXT)")
        .execute(&pool)
        .await?;
    let deliveries = Deliveries::default();
    let handle = start(&pool, &deliveries).await?;

    println!(
        "placing {} orders; every fifth transaction is rolled back …",
        args.orders
    );
    let started = Instant::now();
    for number in 1..=args.orders {
        // The error is the roll-back itself: that is what the customer wanted.
        let _ = place(handle.outbox(), number, args.orders).await;
    }
    let committed = sqlx::query_as("SELECT customer, number FROM orders ORDER BY number");
    let committed: Vec<(String, u32)> = committed.fetch_all(&pool).await?;
    let dead_letters = settle(handle.outbox(), &deliveries, committed.len()).await?;
    let took = started.elapsed();
    handle.stop().await;

    let deliveries = deliveries
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    Ok(verdict(
        args.orders,
        &committed,
        &deliveries,
        dead_letters,
        took,
    ))
}

async fn open(folder: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(10));
    SqlitePoolOptions::new()
        .max_connections(8)
        .connect_with(options)
        .await
}

async fn start(
    pool: &SqlitePool,
    deliveries: &Deliveries,
) -> Result<OutboxHandle<Sqlite>, OutboxError> {
    let deliveries = Arc::clone(deliveries);
    Outbox::builder(pool.clone())
        .auto_migrate()
        .profile(OutboxProfile::low_latency())
        .queue("orders", Partitions::of(4))
        .leased(move |message: OutboxMessage| {
            let result = deliver(&message, &deliveries);
            async move { result }
        })
        .start()
        .await
}

/// Fails at every fiftieth order at first, and for ever at the poison.
fn deliver(message: &OutboxMessage, deliveries: &Deliveries) -> MessageResult {
    if message.payload_type == "poison" {
        return MessageResult::Reject("the address does not exist".into());
    }
    let number = String::from_utf8_lossy(&message.payload)
        .parse()
        .unwrap_or(0);
    if number % 50 == 0 && message.attempts == 0 {
        return MessageResult::Retry;
    }
    let customer = message.key.clone().unwrap_or_default();
    deliveries
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((customer, number));
    MessageResult::Ok
}

/// The order and its message, in one transaction.
async fn place(outbox: &Outbox<Sqlite>, number: u32, last: u32) -> Result<(), OutboxError> {
    outbox
        .transaction(async |transaction| {
            let customer = format!("customer-{}", number % CUSTOMERS);
            sqlx::query("INSERT INTO orders VALUES (?, ?)")
                .bind(number)
                .bind(&customer)
                .execute(&mut *transaction)
                .await?;
            let kind = if number == last.div_ceil(2) {
                "poison"
            } else {
                "order.placed"
            };
            let message = EnqueueMessage::keyed(customer, number.to_string(), kind);
            outbox.enqueue(transaction, "orders", message).await?;
            if number.is_multiple_of(5) && kind != "poison" {
                return Err(sqlx::Error::RowNotFound.into());
            }
            Ok(())
        })
        .await
}

/// Waits until every committed order was delivered or is a dead letter.
async fn settle(
    outbox: &Outbox<Sqlite>,
    deliveries: &Deliveries,
    committed: usize,
) -> Result<u64, OutboxError> {
    let deadline = Instant::now() + PATIENCE;
    let mut look = tokio::time::interval(Duration::from_millis(20));
    loop {
        look.tick().await;
        let dead_letters = outbox.dead_letter_count(&DeadLetterFilter::new()).await?;
        let delivered = deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        if delivered as u64 + dead_letters >= committed as u64 || Instant::now() >= deadline {
            return Ok(dead_letters);
        }
    }
}

/// Prints what was promised beside what happened.
fn verdict(
    placed: u32,
    committed: &[(String, u32)],
    delivered: &[(String, u32)],
    dead_letters: u64,
    took: Duration,
) -> ExitCode {
    let by_customer = |orders: &[(String, u32)]| {
        let mut customers: HashMap<String, Vec<u32>> = HashMap::new();
        for (customer, number) in orders {
            customers.entry(customer.clone()).or_default().push(*number);
        }
        customers
    };
    let poison = placed.div_ceil(2);
    let expected: Vec<_> = committed
        .iter()
        .filter(|(_, number)| *number != poison)
        .cloned()
        .collect();
    let rolled_back = placed as usize - committed.len();
    let invented = delivered
        .iter()
        .filter(|order| !expected.contains(order))
        .count();
    let rows = [
        ("committed", committed.len() as u64, true),
        (
            "delivered",
            delivered.len() as u64,
            delivered.len() == expected.len(),
        ),
        ("dead letters (the poison)", dead_letters, dead_letters == 1),
        ("rolled back", rolled_back as u64, true),
        (
            "delivered although rolled back",
            invented as u64,
            invented == 0,
        ),
    ];
    println!();
    for (what, count, agrees) in rows {
        let remark = if agrees { "" } else { "  WRONG" };
        println!("  {what:<34}{count:>6}{remark}");
    }
    let in_order = by_customer(&expected) == by_customer(delivered);
    println!(
        "  {:<34}{:>6}",
        "order kept for every customer",
        if in_order { "yes" } else { "NO" }
    );
    println!("\n{placed} orders in {:.1} s", took.as_secs_f64());
    if in_order && rows.iter().all(|(.., agrees)| *agrees) {
        println!("nothing lost, nothing invented, nothing out of order");
        ExitCode::SUCCESS
    } else {
        println!("the books do not agree");
        ExitCode::FAILURE
    }
}
