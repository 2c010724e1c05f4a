//! A process that delivers: this command once more, which ends when its standard input does.

use std::process::Stdio;
use std::time::Duration;

use outbox::{
    LeaseConfig, MessageResult, Outbox, OutboxMessage, OutboxProfile, TransactionalMessageHandler,
    WorkerTuning,
};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use super::shop::Shop;
use super::{Order, PARTITIONS, PREFIX, QUEUE};
use crate::Context;
use crate::connection::{URL, on};
use crate::failure::{Code, Failure};

/// Short, so that a process that was killed is replaced while somebody watches.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_secs(2),
    headroom: Duration::from_millis(400),
};
/// How long a process has to end.
const STOP: Duration = Duration::from_secs(15);

/// The other end of it.
#[derive(Debug)]
pub(super) struct Worker(Child);

impl Worker {
    pub(super) fn start(url: &str) -> Result<Self, Failure> {
        let child = Command::new(std::env::current_exe()?)
            .arg("demo-worker")
            // Not an argument: others can read those.
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self(child))
    }

    pub(super) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.0.kill().await?)
    }

    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        let ended = tokio::time::timeout(STOP, self.0.wait()).await;
        if matches!(ended, Ok(Ok(status)) if status.success()) {
            return Ok(());
        }
        let message = "a process of the demo did not end well";
        Err(Failure::new(Code::No, message))
    }
}

/// What the process does.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let pool = context.target.pool().await?;
    on!(pool, pool => deliver(pool).await)
}

async fn deliver<DB: Shop>(pool: sqlx::Pool<DB>) -> Result<(), Failure> {
    let retries = WorkerTuning::processor_low_latency().retry_base(Duration::from_millis(50));
    let handle = Outbox::builder(pool)
        .table_prefix(PREFIX)
        .profile(OutboxProfile::low_latency())
        .processor_tuning(retries)
        .stop_deadline(STOP / 2)
        .queue(QUEUE, PARTITIONS)
        .transactional(Courier)
        .lease(LEASE)
        .start()
        .await?;
    let mut end = Vec::new();
    tokio::io::stdin().read_to_end(&mut end).await?;
    handle.stop().await;
    Ok(())
}

/// Writes down what it delivers, in the transaction that settles it.
struct Courier;

impl<DB: Shop> TransactionalMessageHandler<DB> for Courier {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        if message.payload_type == "poison" {
            return MessageResult::Reject("the address does not exist".to_owned());
        }
        let Some(order) = order(message) else {
            return MessageResult::Reject("this is no order".to_owned());
        };
        // Now and then nobody is at home.
        if order.number % 97 == 0 && message.attempts == 0 {
            return MessageResult::Retry;
        }
        match DB::deliver(connection, order).await {
            Ok(()) => MessageResult::Ok,
            Err(_) => MessageResult::Retry,
        }
    }
}

fn order(message: &OutboxMessage) -> Option<Order> {
    let number = std::str::from_utf8(&message.payload).ok()?;
    let customer = message.key.as_ref()?.strip_prefix("customer-")?;
    Some(Order {
        number: number.parse().ok()?,
        customer: customer.parse().ok()?,
    })
}
