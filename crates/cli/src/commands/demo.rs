//! `outbox demo`: a little shop. Orders are placed in transactions, some of which are rolled back; two
//! processes deliver them, one of which is killed; one order is poison. At the end the books are
//! compared: what was committed was delivered once, in order, and nothing else.

mod shop;
mod verdict;
mod view;
pub(crate) mod worker;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use outbox::{EnqueueMessage, Outbox, OutboxError, OutboxHandle, Partitions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::own_tables::OwnTables;
use crate::Context;
use crate::connection::{Target, on};
use crate::failure::Failure;
use crate::output::Output;
use crate::server::{AccessArgs, Desks, Readiness, Server, Shown};
use shop::Shop;
use verdict::Books;
use view::View;
use worker::Worker;

/// Watch a little shop use the outbox, lose a process, and keep its books
///
/// Orders are placed in transactions, every fifth of which is rolled back. Two processes deliver them,
/// and write down what they deliver; one of them is killed, and replaced. One order is poison. Then the
/// books are compared. It runs on SQLite in a temporary folder, without any set-up, or on the database
/// that --database-url names (not one that only the environment names), in tables of its own that are removed in the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox demo
  outbox demo --database-url postgres://localhost/shop
  outbox demo --seconds 60
  outbox demo --dashboard

Exit code 1 if the books do not agree.")]
pub(crate) struct Args {
    /// How long orders are placed
    #[arg(long, default_value_t = 10, default_value_if("dashboard", clap::builder::ArgPredicate::IsPresent, "120"), value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Show it in a browser while it runs, for two minutes unless said
    #[arg(long, value_name = "ADDRESS", value_parser = crate::format::address, num_args = 0..=1, default_missing_value = "127.0.0.1:8080")]
    dashboard: Option<SocketAddr>,
}

/// The tables of the demo, and nobody else's, begin with this.
const PREFIX: &str = "outbox_demo_";
const QUEUE: &str = "orders";
const PARTITIONS: Partitions = Partitions::of(4);
/// How many sell at the same time, and to how many customers each.
const CLERKS: u32 = 4;
const CUSTOMERS: u32 = 5;
/// What a clerk rests between two orders.
const REST: Duration = Duration::from_millis(8);
/// This order is poison. It is not rolled back: five does not divide it.
const POISON: u32 = 42;
/// How long the demo waits for the last order.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir()?;
    let url = match context.target.explicit_url() {
        Some(url) => url.to_owned(),
        None => embedded(folder.path()).await?,
    };
    let pool = Target::at(&url).pool().await?;
    on!(pool, pool => perform(args, pool, &url, output).await)
}

/// SQLite, as an application would set it up: readers and writers side by side.
async fn embedded(folder: &Path) -> Result<String, Failure> {
    let file = folder.join("shop.db");
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    options.connect().await?.close().await?;
    Ok(format!("sqlite://{}", file.display()))
}

/// From the first table to the last.
async fn perform<DB: Shop>(
    args: &Args,
    pool: sqlx::Pool<DB>,
    url: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    let shop = ", and drop outbox_demo_orders and outbox_demo_deliveries";
    let tables = OwnTables::claim(&pool, PREFIX, shop).await?;
    let work = async { play(args, pool.clone(), url, output).await };
    // Not over what is there: it may be somebody's.
    DB::open(&mut *pool.acquire().await?).await.map_err(|error| {
        Failure::from(error).way_out(
            "if a demo that was cut short left outbox_demo_orders and outbox_demo_deliveries, drop them",
        )
    })?;
    let done = tables.lend(work).await;
    DB::close(&mut *pool.acquire().await?).await?;
    done
}

async fn play<DB: Shop>(
    args: &Args,
    pool: sqlx::Pool<DB>,
    url: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    let handle: OutboxHandle<DB> = Outbox::builder(pool.clone())
        .table_prefix(PREFIX)
        .auto_migrate()
        .without_workers()
        .queue(QUEUE, PARTITIONS)
        .produce_only()
        .start()
        .await?;
    let outbox = handle.outbox().clone();
    let view = View::new(&outbox, output.is_json());
    view.say("two processes deliver what is ordered; every fifth order is rolled back");
    let _served = match args.dashboard {
        None => None,
        Some(listen) => Some(show(&outbox, listen, &view).await?),
    };
    let mut workers = [Worker::start(url)?, Worker::start(url)?];

    let started = Instant::now();
    let until = started + Duration::from_secs(args.seconds);
    let placed = Arc::new(AtomicU32::new(0));
    let clerks = (0..CLERKS).map(|clerk| sell(&outbox, clerk, until, Arc::clone(&placed)));
    let trouble = async {
        tokio::time::sleep_until(started + Duration::from_secs(args.seconds) / 3).await;
        view.say("one of the two processes is killed, in the middle of whatever it does …");
        workers[0].kill().await?;
        tokio::time::sleep_until(started + Duration::from_secs(args.seconds) * 2 / 3).await;
        view.say("… and another one takes its place");
        workers[0] = Worker::start(url)?;
        Ok::<_, Failure>(())
    };
    let (sold, trouble, settled) = tokio::join!(join_all(clerks), trouble, async {
        view.watch(&placed, until).await;
        view.settle(until + PATIENCE).await
    });
    sold.into_iter().collect::<Result<Vec<()>, _>>()?;
    trouble?;
    settled?;
    view.end();
    let took = started.elapsed();
    for worker in &mut workers {
        worker.stop().await?;
    }
    let placed = placed.load(Ordering::Relaxed);
    let books = Books::read(&pool, &outbox, placed).await?;
    handle.stop().await;
    books.report(took, output)
}

/// Shows the shop's outbox in a browser, with every right: it is a demo.
async fn show<DB: Shop>(
    outbox: &Outbox<DB>,
    listen: SocketAddr,
    view: &View<'_, DB>,
) -> Result<AbortOnDropHandle<()>, Failure> {
    let desks = Desks::new(["demo".to_owned()], AccessArgs::all());
    desks.open("demo", outbox.clone());
    let shown = Shown {
        ready: Readiness::new([]),
        desks: Some(desks),
    };
    let server = Server::of_desks(None, AccessArgs::all(), listen, shown)?;
    let (address, serving) = server.start(listen).await?;
    view.say(&format!("the dashboard is at http://{address}"));
    Ok(AbortOnDropHandle::new(serving))
}

/// Sells to its customers, one order after the other.
async fn sell<DB: Shop>(
    outbox: &Outbox<DB>,
    clerk: u32,
    until: Instant,
    placed: Arc<AtomicU32>,
) -> Result<(), Failure> {
    let mut customers = (0..CUSTOMERS).cycle();
    while Instant::now() < until
        && let Some(customer) = customers.next()
    {
        let number = placed.fetch_add(1, Ordering::Relaxed) + 1;
        let order = Order {
            number,
            customer: clerk * CUSTOMERS + customer,
        };
        match order.place(outbox).await {
            Ok(()) | Err(Unplaced::CustomerLeft) => tokio::time::sleep(REST).await,
            Err(Unplaced::Failed(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What a customer orders.
#[derive(Debug, Clone, Copy)]
struct Order {
    number: u32,
    customer: u32,
}

/// Why an order was not placed.
#[derive(Debug)]
enum Unplaced {
    /// The roll-back is what the customer wanted.
    CustomerLeft,
    Failed(OutboxError),
}

impl From<OutboxError> for Unplaced {
    fn from(error: OutboxError) -> Self {
        Self::Failed(error)
    }
}

impl Order {
    /// The order and its message, in one transaction.
    async fn place<DB: Shop>(self, outbox: &Outbox<DB>) -> Result<(), Unplaced> {
        let Self { number, customer } = self;
        outbox
            .transaction(async |connection: &mut DB::Connection| {
                DB::order(connection, self)
                    .await
                    .map_err(OutboxError::from)?;
                let kind = if number == POISON {
                    "poison"
                } else {
                    "order.placed"
                };
                let key = format!("customer-{customer}");
                let message = EnqueueMessage::keyed(key, number.to_string(), kind);
                outbox.enqueue(connection, QUEUE, message).await?;
                if number.is_multiple_of(5) {
                    return Err(Unplaced::CustomerLeft);
                }
                Ok(())
            })
            .await
    }
}
