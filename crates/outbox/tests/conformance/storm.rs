//! A storm of deadlocks: handlers and producers take the same business rows in opposite orders. That
//! is between them; whoever only enqueues notices nothing, and nothing is lost or done twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outbox::{
    MessageResult, Outbox, OutboxError, OutboxMessage, TransactionalMessageHandler, WorkerTuning,
};
use sqlx::Pool;

use super::stage::{FOUR, quick, text_message};
use super::{Collector, Dialect, Stage};

/// Transactions of each producer that only enqueues.
const ENQUEUES: usize = 40;
/// How many deadlocks make a storm.
const STORM: usize = 5;

/// The two accounts, in this order or the other.
fn accounts(backwards: bool) -> [String; 2] {
    let rows = if backwards { [2, 1] } else { [1, 2] };
    rows.map(|row| format!("UPDATE accounts SET balance = balance + 1 WHERE id = {row}"))
}

/// Books each message on both accounts.
struct Clerk {
    collector: Collector,
    deadlocks: Arc<AtomicUsize>,
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Clerk {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        for update in accounts(message.partition.is_multiple_of(2)) {
            if let Err(error) = DB::run(connection, update).await {
                let error = OutboxError::from(error);
                assert!(error.is_retryable(), "not a deadlock: {error}");
                self.deadlocks.fetch_add(1, Ordering::SeqCst);
                return MessageResult::Retry;
            }
            tokio::task::yield_now().await;
        }
        self.collector.see(message)
    }
}

/// What the producers share.
struct Storm<DB: Dialect> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    deadlocks: Arc<AtomicUsize>,
    over: AtomicBool,
    sent: AtomicUsize,
    booked: AtomicUsize,
}

impl<DB: Dialect> Storm<DB> {
    /// A producer with business of its own, until the storm is over.
    async fn trade(&self, producer: usize) {
        while !self.over.load(Ordering::SeqCst) {
            let begin = self.pool.begin_with(DB::BEGIN_WRITING).await;
            let mut transaction = begin.expect("begin");
            let mut died = false;
            for update in accounts(producer.is_multiple_of(2)) {
                if let Err(error) = DB::run(&mut transaction, update).await {
                    let error = OutboxError::from(error);
                    assert!(error.is_retryable(), "not a deadlock: {error}");
                    self.deadlocks.fetch_add(1, Ordering::SeqCst);
                    died = true;
                    break;
                }
                tokio::task::yield_now().await;
            }
            if died {
                // MySQL has rolled it back already; saying so again does no harm.
                transaction.rollback().await.expect("roll back");
                continue;
            }
            let message = text_message(producer as u32 % 4, "traded");
            let enqueued = self
                .outbox
                .enqueue(&mut transaction, "orders", message)
                .await;
            enqueued.expect("the enqueue is not what deadlocks");
            transaction.commit().await.expect("nor is the commit");
            self.sent.fetch_add(1, Ordering::SeqCst);
            self.booked.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A producer that only enqueues: it must not notice anything.
    async fn enqueue(&self, producer: usize) {
        for number in 0..ENQUEUES {
            let begin = self.pool.begin_with(DB::BEGIN_WRITING).await;
            let mut transaction = begin.expect("begin");
            let partition = |part| ((producer + number + part) % 4) as u32;
            let messages = [0, 1, 3].map(|part| text_message(partition(part), "enqueued"));
            let enqueued = self
                .outbox
                .enqueue_batch(&mut transaction, "orders", &messages);
            enqueued.await.expect("a producer was hurt");
            transaction
                .commit()
                .await
                .expect("a producer was hurt at its commit");
            self.sent.fetch_add(messages.len(), Ordering::SeqCst);
        }
    }

    async fn enough(&self) {
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        let enough = if DB::CONCURRENT_WRITERS { STORM } else { 0 };
        let storm = async {
            while self.deadlocks.load(Ordering::SeqCst) < enough {
                looks.tick().await;
            }
        };
        let patience = Duration::from_secs(15);
        let storm = tokio::time::timeout(patience, storm).await;
        self.over.store(true, Ordering::SeqCst);
        storm.expect("there was no storm");
    }
}

pub(crate) async fn a_storm_of_deadlocks_hurts_nobody_who_only_enqueues<DB: Dialect>(
    stage: &Stage<DB>,
) {
    stage
        .run("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
        .await;
    stage
        .run("INSERT INTO accounts VALUES (1, 0), (2, 0)")
        .await;
    let (collector, deadlocks) = (Collector::new(), Arc::<AtomicUsize>::default());
    let clerk = Clerk {
        collector: collector.clone(),
        deadlocks: Arc::clone(&deadlocks),
    };
    let pool = stage.pool_saying(DB::FINDS_DEADLOCKS_SOON, 10).await;
    let tuning = WorkerTuning::processor_low_latency()
        .retry_base(Duration::from_millis(5))
        .retry_max(Duration::from_millis(100));
    let builder = quick(Outbox::builder(pool)).auto_migrate();
    let builder = builder.processor_tuning(tuning).queue("orders", FOUR);
    let handle = builder.transactional(clerk).start().await.unwrap();
    let storm = Storm {
        pool: stage.pool_saying(DB::FINDS_DEADLOCKS_SOON, 8).await,
        outbox: handle.outbox().clone(),
        deadlocks,
        over: AtomicBool::new(false),
        sent: AtomicUsize::new(0),
        booked: AtomicUsize::new(0),
    };
    let traders = futures_util::future::join_all((0..4).map(|producer| storm.trade(producer)));
    let others = async {
        futures_util::future::join_all((0..4).map(|producer| storm.enqueue(producer))).await;
        storm.enough().await;
    };
    tokio::join!(traders, others);
    let sent = storm.sent.load(Ordering::SeqCst);
    let settled = sent + storm.booked.load(Ordering::SeqCst);
    let balanced = format!("SELECT COUNT(*) FROM accounts WHERE balance = {settled}");
    stage.until(&balanced, 2).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    handle.stop().await;
    assert_eq!(
        stage.number(balanced).await,
        2,
        "every message and every trade is booked once"
    );
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM outbox_dead_letters")
            .await,
        0
    );
}
