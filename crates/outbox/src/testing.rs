//! For the tests of applications: the pipeline without background tasks, run when the test says so,
//! with a clock that the test moves; what was enqueued; and handlers that fail on command.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # async fn test(pool: sqlx::SqlitePool) -> Result<(), outbox::OutboxError> {
//! use std::time::Duration;
//!
//! use outbox::testing::{Failure, fail_on};
//! use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxMessage, Partitions};
//!
//! let send = async |_: OutboxMessage| MessageResult::Ok;
//! let mut outbox = Outbox::builder(pool)
//!     .auto_migrate()
//!     .queue("orders", Partitions::of(1))
//!     .leased(fail_on(1, Failure::Retry, send))
//!     .step_by_step()
//!     .await?;
//!
//! let message = EnqueueMessage::to(0, "a loom", "order.placed");
//! let producer = outbox.outbox().clone();
//! producer
//!     .transaction(async |connection| producer.enqueue(connection, "orders", message).await)
//!     .await?;
//! outbox
//!     .assert_enqueued("orders", |message| message.payload_type == "order.placed")
//!     .await;
//!
//! assert_eq!(outbox.drain().await?.retried, 1); // it backs off now
//! outbox.advance(Duration::from_secs(60)).await?;
//! assert_eq!(outbox.drain().await?.settled, 1);
//! outbox.assert_nothing_enqueued("orders").await;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sqlx::AssertSqlSafe;
use taskward::Directive;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, OwnConnection, PartitionId, Sequenced, StoredMessage, Stride};
use crate::builder::OutboxBuilder;
use crate::dead_letter::DeadLetterFilter;
use crate::error::OutboxError;
use crate::handler::{
    HandlerResult, LeasedMessageHandler, MessageResult, TransactionalMessageHandler,
};
use crate::message::{DEFAULT_ORIGIN, OutboxMessage, OutboxMessageId};
use crate::outbox::Outbox;
use crate::workers::processor::Processor;

/// A drain that goes on for so many rounds has handlers that enqueue for ever.
const MAX_ROUNDS: u32 = 100_000;
/// The most messages that are looked at.
const MAX_ENQUEUED: u32 = 10_000;

/// For tests.
impl<DB: Backend> OutboxBuilder<DB> {
    /// Instead of [`start`](Self::start): nothing runs but what the test asks for, and no backoff ends
    /// but by [`TestOutbox::advance`], however slow the test is.
    pub async fn step_by_step(self) -> Result<TestOutbox<DB>, OutboxError> {
        let mut builder = self.movable_clock();
        let engine = builder.prepare().await?;
        engine.clock.stop();
        for desk in engine.desks.values() {
            desk.note().ours = true;
        }
        let processors = engine
            .queues
            .values()
            .filter(|queue| queue.handler.is_some())
            .flat_map(|queue| {
                let partitions = u32::from(queue.partitions.count());
                (0..partitions).map(|partition| (Arc::clone(queue), partition))
            })
            .map(|(queue, partition)| Processor::new(Arc::clone(&engine), queue, partition))
            .collect();
        Ok(TestOutbox {
            outbox: Outbox { engine },
            processors,
        })
    }
}

/// Steps the database's clock, as an operator or a time server might, of every outbox in this database
/// that was built with a movable clock.
pub async fn step_clock<DB: Backend>(outbox: &Outbox<DB>, millis: i64) -> Result<(), OutboxError> {
    let store = &outbox.engine.store;
    let table = store.prefix.fill("{prefix}clock");
    let step = format!("INSERT INTO {table} (moved_millis) VALUES ({millis})");
    let mut connection = OwnConnection::acquire(&store.workers).await?;
    DB::execute(&mut connection, AssertSqlSafe(step)).await?;
    connection.give_back();
    Ok(())
}

/// What one [`drain`](TestOutbox::drain) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Drained {
    /// Messages that got their number.
    pub sequenced: u64,
    /// Messages that were settled, acked or dead-lettered.
    pub settled: u64,
    /// Deliveries that ended in a retry.
    pub retried: u64,
    /// Messages that went to the dead letters.
    pub dead_lettered: u64,
}

/// An outbox without background tasks. Dropped like a process that crashes: its leases stay until they
/// run out; [`stop`](Self::stop) gives them back.
#[derive(Debug)]
pub struct TestOutbox<DB: Backend> {
    outbox: Outbox<DB>,
    processors: Vec<Processor<DB>>,
}

impl<DB: Backend> TestOutbox<DB> {
    /// The producer's and the operator's side.
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Sequences and delivers until nothing is left that is due. What backs off after a retry is not:
    /// [`advance`](Self::advance) the clock.
    pub async fn drain(&mut self) -> Result<Drained, OutboxError> {
        let cancel = CancellationToken::new();
        let store = &self.outbox.engine.store;
        let everything = DeadLetterFilter::default();
        let buried = DB::count_dead_letters(store, &everything).await?;
        let mut drained = Drained::default();
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "the handlers enqueue for ever");
            let before = drained;
            for partition_id in self.outbox.engine.partition_ids() {
                drained.sequenced += self.sequence(partition_id).await?;
            }
            for processor in &mut self.processors {
                loop {
                    let directive = processor.drain(&cancel).await?;
                    let report = directive.payload();
                    drained.settled += u64::from(report.messages_processed);
                    let retry = matches!(report.handler_result, HandlerResult::Retry { .. });
                    drained.retried += u64::from(retry);
                    if !matches!(directive, Directive::Proceed(_)) {
                        break;
                    }
                }
                processor.pay_now().await?;
            }
            if drained == before {
                break;
            }
        }
        for partition_id in self.outbox.engine.partition_ids() {
            self.sweep(partition_id).await?;
        }
        let store = &self.outbox.engine.store;
        let letters = DB::count_dead_letters(store, &everything).await?;
        drained.dead_lettered = letters.saturating_sub(buried);
        Ok(drained)
    }

    async fn sequence(&self, partition_id: PartitionId) -> Result<u64, OutboxError> {
        let engine = &self.outbox.engine;
        let mut total = 0;
        loop {
            let limit = engine.sequencer.batch_size;
            let mut more_left = false;
            let (one, stride) = ([partition_id], Stride::Growing);
            for (_, sequenced) in DB::sequence(&engine.store, &one, limit, stride).await? {
                match sequenced {
                    Sequenced::Busy => {}
                    Sequenced::ForeignIds => return Err(OutboxError::foreign_ids(partition_id)),
                    Sequenced::Done { count, more } => {
                        total += u64::from(count);
                        more_left |= more;
                    }
                }
            }
            if !more_left {
                return Ok(total);
            }
        }
    }

    async fn sweep(&self, partition_id: PartitionId) -> Result<(), OutboxError> {
        let engine = &self.outbox.engine;
        let limit = engine.profile.vacuum.batch_size;
        while DB::sweep(&engine.store, partition_id, limit).await?.more {}
        Ok(())
    }

    /// Moves time forward, the database's and this outbox's: backoffs end, leases and claims run out.
    pub async fn advance(&self, by: Duration) -> Result<(), OutboxError> {
        self.outbox.engine.clock.advance(by);
        step_clock(&self.outbox, crate::engine::millis(by)).await
    }

    /// The committed messages of a queue that are not settled, in the order of their ids, which is the
    /// order of enqueuing. Their `seq`, `attempts` and `epoch` are 0.
    pub async fn enqueued(&self, queue: &str) -> Result<Vec<OutboxMessage>, OutboxError> {
        let mut connection = OwnConnection::acquire(&self.outbox.engine.store.workers).await?;
        let messages = self.enqueued_in(&mut connection, queue).await?;
        connection.give_back();
        Ok(messages)
    }

    /// Like [`enqueued`](Self::enqueued), as this connection sees it: in a transaction that is still
    /// open, with what it has enqueued itself.
    pub async fn enqueued_in(
        &self,
        connection: &mut DB::Connection,
        queue: &str,
    ) -> Result<Vec<OutboxMessage>, OutboxError> {
        let queue = self.outbox.queue(queue)?;
        let name = queue.name.as_str();
        let sql = &self.outbox.engine.store.sql;
        let unsettled = DB::unsettled(sql, connection, name, MAX_ENQUEUED).await?;
        let message = |(partition, stored): (u32, StoredMessage)| {
            let partition_id = queue.partition_ids[partition as usize];
            OutboxMessage::stored(stored, queue, partition, partition_id)
        };
        Ok(unsettled.into_iter().map(message).collect())
    }

    /// Panics unless a message that `is_it` was enqueued and is not settled; answers the first.
    pub async fn assert_enqueued(
        &self,
        queue: &str,
        is_it: impl Fn(&OutboxMessage) -> bool,
    ) -> OutboxMessage {
        let messages = self.look(queue).await;
        match messages.iter().find(|message| is_it(message)) {
            Some(message) => message.clone(),
            None => panic!(
                "no such message in queue {queue:?}; there are:{}",
                listed(&messages)
            ),
        }
    }

    /// Panics if a committed message of the queue is not settled.
    pub async fn assert_nothing_enqueued(&self, queue: &str) {
        let messages = self.look(queue).await;
        assert!(
            messages.is_empty(),
            "queue {queue:?} has:{}",
            listed(&messages)
        );
    }

    async fn look(&self, queue: &str) -> Vec<OutboxMessage> {
        match self.enqueued(queue).await {
            Ok(messages) => messages,
            Err(error) => panic!("cannot look into queue {queue:?}: {error}"),
        }
    }

    /// Gives the leases back, like a process that stops cleanly.
    pub async fn stop(self) -> Result<(), OutboxError> {
        let engine = &self.outbox.engine;
        for desk in engine.desks.values() {
            let lease = desk.note().lease;
            if let Some(lease) = lease {
                DB::release(&engine.store, lease).await?;
            }
        }
        Ok(())
    }
}

fn listed(messages: &[OutboxMessage]) -> String {
    if messages.is_empty() {
        return " nothing".to_owned();
    }
    let line = |message: &OutboxMessage| {
        let payload: String = String::from_utf8_lossy(&message.payload)
            .chars()
            .take(80)
            .collect();
        format!(
            "\n  partition {}, {}, key {:?}: {payload}",
            message.partition, message.payload_type, message.key
        )
    };
    messages.iter().map(line).collect()
}

/// A message to call a handler with: the first of its queue, at its first delivery. Change its fields
/// as needed.
pub fn message(payload: impl Into<Vec<u8>>, payload_type: impl Into<String>) -> OutboxMessage {
    OutboxMessage {
        id: OutboxMessageId(1),
        origin: DEFAULT_ORIGIN.into(),
        queue: "test".into(),
        partition: 0,
        partition_id: 1,
        seq: 1,
        payload: payload.into(),
        payload_type: payload_type.into(),
        created_at: SystemTime::now(),
        attempts: 0,
        key: None,
        headers: BTreeMap::new(),
        epoch: 1,
    }
}

/// How a handler is made to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It answers [`MessageResult::Retry`].
    Retry,
    /// It answers [`MessageResult::Reject`].
    Reject,
    /// It panics.
    Panic,
}

/// A handler that does its work, but fails on the n-th message: see [`fail_on`].
#[derive(Debug)]
pub struct FailOn<H> {
    handler: H,
    nth: u64,
    failure: Failure,
    calls: AtomicU64,
}

/// Makes a handler fail the `nth` time it is called, counted from 1, after it has done its work: the
/// harder case, for what it did must be undone or must not matter when it is done again.
pub fn fail_on<H>(nth: u64, failure: Failure, handler: H) -> FailOn<H> {
    FailOn {
        handler,
        nth,
        failure,
        calls: AtomicU64::new(0),
    }
}

impl<H> FailOn<H> {
    fn answer(&self, answer: MessageResult) -> MessageResult {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if call != self.nth {
            return answer;
        }
        match self.failure {
            Failure::Retry => MessageResult::Retry,
            Failure::Reject => MessageResult::Reject("told to fail".to_owned()),
            Failure::Panic => panic!("told to fail"),
        }
    }
}

impl<H: LeasedMessageHandler> LeasedMessageHandler for FailOn<H> {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.answer(self.handler.handle(message).await)
    }
}

impl<DB: Backend, H: TransactionalMessageHandler<DB>> TransactionalMessageHandler<DB>
    for FailOn<H>
{
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        self.answer(self.handler.handle(connection, message).await)
    }
}
