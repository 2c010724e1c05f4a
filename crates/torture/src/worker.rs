//! A worker process: both queues, handlers that do what the message says.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, LeasedMessageHandler, MessageResult, Outbox,
    OutboxBuilder, OutboxError, OutboxHandle, OutboxMessage, OutboxProfile, TransactionalHandler,
    TransactionalMessageHandler, WorkerTuning,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::block_in_place;

use crate::dialect::{Dialect, Ping};
use crate::faults::booking;
use crate::ledger::{Ledger, now};
use crate::processes::{Mood, Role, end_as_scripted};
use crate::producer::{KIND, LABEL, label};
use crate::script::{Order, Queue, Script};

/// Short, for much waits for it to run out.
pub(crate) const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(2_000),
    headroom: Duration::from_millis(400),
};

/// What every process of the bed has in common.
pub(crate) fn builder<DB: Dialect>(pool: sqlx::Pool<DB>) -> OutboxBuilder<DB> {
    let processor = WorkerTuning::processor_low_latency()
        .retry_base(Duration::from_millis(20))
        .retry_max(Duration::from_millis(500));
    Outbox::builder(pool)
        .profile(OutboxProfile::low_latency())
        .processor_tuning(processor)
        .max_payload(2 << 20)
        .stop_deadline(Duration::from_secs(10))
}

pub(crate) async fn run<DB: Dialect>(role: &Role, url: &str) -> Result<()> {
    let ledger = role.ledger.as_deref().context("a worker has a ledger")?;
    let ledger = Arc::new(Ledger::open(ledger)?);
    let pool = DB::pool(url, role.connections, Ping::Never).await?;
    let start = async || {
        let leased = builder(pool.clone()).queue(Queue::Leased.name(), Queue::PARTITIONS);
        let bookkeeper = Bookkeeper(Arc::clone(&ledger));
        let leased = if role.batches {
            leased.batch_leased(bookkeeper)
        } else {
            leased.leased(bookkeeper)
        };
        let queue = leased
            .lease(LEASE)
            .queue(Queue::Transactional.name(), Queue::PARTITIONS);
        // SQLite's only lock is held while a handler hangs, and what hangs in a batch is tried with its
        // neighbours many times before it is tried alone.
        let both = if role.batches && DB::CONCURRENT {
            queue.batch_transactional(Clerk)
        } else {
            queue.transactional(Clerk)
        };
        both.lease(LEASE).start().await
    };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut over = pin!(async { while Mood::hear(&mut lines).await != Mood::Over {} });
    // It may be asked to stop before it has found its database.
    let handle = tokio::select! {
        handle = started(start) => handle?,
        () = &mut over => return Ok(()),
    };
    over.await;
    handle.stop().await;
    Ok(())
}

/// Starts an outbox. A process may come up while its database is away; whoever runs it would start it
/// again.
pub(crate) async fn started<DB: Dialect>(
    start: impl AsyncFn() -> Result<OutboxHandle<DB>, OutboxError>,
) -> Result<OutboxHandle<DB>> {
    loop {
        match start().await {
            Ok(handle) => return Ok(handle),
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the database is away");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error).context("start the outbox"),
        }
    }
}

/// The order that a message is; none if anything of it is not as it was sent.
fn received(message: &OutboxMessage) -> Option<Order> {
    let order = Order::read(&message.payload)?;
    let sent = message.headers.get(LABEL);
    let label = label(&order, message.key.as_deref());
    let same = message.payload_type == KIND && sent == Some(&label);
    same.then_some(order)
}

/// Does what the message says.
async fn obey(message: &OutboxMessage, order: Option<Order>) -> MessageResult {
    let Some(order) = order else {
        // The verdict has it: it is in the ledger or in the effects.
        return MessageResult::Reject("not what was sent".to_owned());
    };
    let again = message.attempts >= order.script.failures();
    match order.script {
        Script::Poison => MessageResult::Reject("poison".to_owned()),
        _ if again => MessageResult::Ok,
        Script::Retry | Script::BadSql => MessageResult::Retry,
        Script::Panic => panic!("as scripted"),
        Script::Slow => {
            tokio::time::sleep(LEASE.duration * 2).await;
            MessageResult::Ok
        }
        Script::Block => {
            std::thread::sleep(LEASE.duration + LEASE.headroom);
            MessageResult::Retry
        }
        Script::Abort => {
            end_as_scripted();
            std::future::pending().await
        }
        Script::Hang => std::future::pending().await,
        Script::Fine | Script::Large | Script::Bytes | Script::Accounts => MessageResult::Ok,
    }
}

/// Leased: writes into its ledger.
struct Bookkeeper(Arc<Ledger>);

impl LeasedMessageHandler for Bookkeeper {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        let order = received(message);
        // The disk may take its time.
        let started = block_in_place(|| self.0.start(message, order));
        started.expect("write the ledger");
        let result = obey(message, order).await;
        let success = result == MessageResult::Ok;
        let ended = block_in_place(|| self.0.end(message, success));
        ended.expect("write the ledger");
        result
    }
}

impl LeasedHandler for Bookkeeper {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while !batch.remaining().is_zero()
            && let Some(message) = batch.next_msg()
        {
            match LeasedMessageHandler::handle(self, message).await {
                MessageResult::Ok => batch.ack(message),
                MessageResult::Reject(reason) => batch.reject(message, reason),
                MessageResult::Retry => return again(),
            }
        }
        HandlerResult::Success
    }
}

fn again() -> HandlerResult {
    HandlerResult::Retry {
        reason: "as scripted".to_owned(),
    }
}

/// Transactional: writes into the effects.
struct Clerk;

impl<DB: Dialect> TransactionalMessageHandler<DB> for Clerk {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let order = received(message);
        let (producer, number) = order.map_or((-1, -1), |order| (order.producer, order.number));
        let OutboxMessage {
            partition,
            seq,
            epoch,
            attempts,
            ..
        } = message;
        let effect = format!(
            "INSERT INTO effects (part, seq, epoch, attempts, producer, number, made_at) \
             VALUES ({partition}, {seq}, {epoch}, {attempts}, {producer}, {number}, {})",
            now()
        );
        if DB::run(connection, effect).await.is_err() {
            return MessageResult::Retry;
        }
        match order.map(|order| order.script) {
            Some(Script::BadSql) if message.attempts == 0 => {
                // On PostgreSQL nothing else can be said in the transaction now.
                let nonsense = "INSERT INTO effects (part) VALUES (NULL)".to_owned();
                let _ = DB::run(connection, nonsense).await;
            }
            Some(Script::Accounts) => {
                let first = 1 + number % 2;
                for account in [first, 3 - first] {
                    // Who loses a deadlock on MySQL has no transaction any more.
                    if DB::run(connection, booking(account)).await.is_err() {
                        return MessageResult::Retry;
                    }
                }
            }
            _ => {}
        }
        obey(message, order).await
    }
}

impl<DB: Dialect> TransactionalHandler<DB> for Clerk {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        messages: &[OutboxMessage],
    ) -> HandlerResult {
        for message in messages {
            match TransactionalMessageHandler::<DB>::handle(self, connection, message).await {
                MessageResult::Ok => {}
                MessageResult::Reject(reason) => return HandlerResult::Reject { reason },
                MessageResult::Retry => return again(),
            }
        }
        HandlerResult::Success
    }
}
