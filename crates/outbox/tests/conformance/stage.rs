//! What a test stands on: its database, pools, and handlers that say what they saw.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    EnqueueMessage, LeasedMessageHandler, MessageResult, Outbox, OutboxBuilder, OutboxError,
    OutboxHandle, OutboxMessage, OutboxProfile, Partitions, WorkerTuning,
};
use sqlx::Pool;
use testbed::Database;
use tokio::sync::Notify;

use super::Dialect;
use super::outcomes::Ledger;

/// How long a test waits for something that should happen soon, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A database for one test, and the tables the tests use beside the outbox's.
pub(crate) struct Stage<DB: Dialect> {
    pub(crate) url: String,
    pub(crate) pool: Pool<DB>,
}

impl<DB: Dialect> Stage<DB> {
    pub(crate) async fn set(database: &Database) -> Self {
        // RUST_LOG=outbox=trace,taskward=trace shows what the workers of a failing test did.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let stage = Self {
            url: database.url().to_owned(),
            pool: DB::connect(database.url(), 8).await,
        };
        stage
            .run("CREATE TABLE effects (seq BIGINT NOT NULL, note VARCHAR(200))")
            .await;
        stage
    }

    /// A pool of its own, as another process would have.
    pub(crate) async fn another_pool(&self, connections: u32) -> Pool<DB> {
        DB::connect(&self.url, connections).await
    }

    /// A pool whose sessions all begin with this statement.
    pub(crate) async fn pool_saying(&self, statement: &'static str, connections: u32) -> Pool<DB> {
        let options = self.pool.connect_options();
        sqlx::pool::PoolOptions::<DB>::new()
            .max_connections(connections)
            .after_connect(move |connection, _| Box::pin(DB::run(connection, statement.to_owned())))
            .connect_with((*options).clone())
            .await
            .expect("a pool")
    }

    pub(crate) async fn run(&self, sql: impl Into<String>) {
        let mut connection = self.pool.acquire().await.expect("a connection");
        DB::run(&mut connection, sql.into())
            .await
            .expect("a statement of the test");
    }

    pub(crate) async fn number(&self, sql: impl Into<String>) -> i64 {
        let mut connection = self.pool.acquire().await.expect("a connection");
        DB::number(&mut connection, sql.into())
            .await
            .expect("a query of the test")
    }

    /// An outbox that reacts within milliseconds, in a fresh schema.
    pub(crate) fn outbox(&self) -> OutboxBuilder<DB> {
        quick(Outbox::builder(self.pool.clone())).auto_migrate()
    }

    /// Delivers the queue "orders" to this collector, outside any transaction.
    pub(crate) async fn deliver(
        &self,
        partitions: Partitions,
        collector: &Collector,
    ) -> OutboxHandle<DB> {
        let queue = self.outbox().queue("orders", partitions);
        queue.leased(collector.clone()).start().await.unwrap()
    }

    /// Delivers the queue "orders", of one partition, inside transactions that book effects.
    pub(crate) async fn book(&self, collector: &Collector) -> OutboxHandle<DB> {
        let queue = self.outbox().queue("orders", ONE);
        queue
            .transactional(Ledger(collector.clone()))
            .start()
            .await
            .unwrap()
    }

    /// Enqueues texts to a partition in one transaction and wakes the pipeline.
    pub(crate) async fn enqueue(&self, outbox: &Outbox<DB>, partition: u32, texts: &[&str]) {
        let messages: Vec<_> = texts
            .iter()
            .map(|text| text_message(partition, text))
            .collect();
        outbox
            .transaction(async |transaction| {
                outbox.enqueue_batch(transaction, "orders", &messages).await
            })
            .await
            .expect("enqueue");
    }

    /// Enqueues this into each of so many partitions.
    pub(crate) async fn enqueue_everywhere(
        &self,
        outbox: &Outbox<DB>,
        partitions: Partitions,
        text: &str,
    ) {
        for partition in 0..u32::from(partitions.count()) {
            self.enqueue(outbox, partition, &[text]).await;
        }
    }

    /// What the dead letters say: partition, number, attempts and reason, in this order.
    pub(crate) async fn buried(&self, outbox: &Outbox<DB>) -> Vec<(u32, i64, u32, String)> {
        let all = outbox::DeadLetterFilter::new();
        let letters = outbox.dead_letter_list(&all).await;
        let mut buried: Vec<_> = letters
            .expect("the dead letters")
            .into_iter()
            .map(|letter| {
                (
                    letter.partition,
                    letter.seq,
                    letter.attempts,
                    letter.last_error,
                )
            })
            .collect();
        buried.sort();
        buried
    }

    /// Waits until a process said so often that it is alive.
    pub(crate) async fn signs_of_life(&self, count: u32) {
        for _ in 0..count {
            let seen = "SELECT COALESCE(MAX(seen_at), 0) AS seen FROM outbox_processes";
            let before = self.number(seen).await;
            let later = format!("SELECT COUNT(*) FROM ({seen}) AS last WHERE seen > {before}");
            self.until(&later, 1).await;
        }
    }

    /// Waits until a query answers this number.
    pub(crate) async fn until(&self, sql: &str, expected: i64) {
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut looks = tokio::time::interval(Duration::from_millis(5));
            loop {
                looks.tick().await;
                if self.number(sql).await == expected {
                    return;
                }
            }
        });
        if waited.await.is_err() {
            let found = self.number(sql).await;
            panic!("{sql} is {found} and never became {expected}");
        }
    }
}

/// Retries come soon, or tests would take minutes.
pub(crate) fn quick<DB: Dialect>(builder: OutboxBuilder<DB>) -> OutboxBuilder<DB> {
    let processor = WorkerTuning::processor_low_latency().retry_base(Duration::from_millis(20));
    builder.profile(OutboxProfile {
        processor,
        ..OutboxProfile::low_latency()
    })
}

pub(crate) fn text_message(partition: u32, text: &str) -> EnqueueMessage {
    EnqueueMessage::to(partition, text, "text/plain")
}

/// A handler that remembers what it was given and answers as told.
#[derive(Clone)]
pub(crate) struct Collector {
    seen: Arc<Mutex<Vec<OutboxMessage>>>,
    news: Arc<Notify>,
    answer: Arc<dyn Fn(&OutboxMessage) -> MessageResult + Send + Sync>,
}

impl Collector {
    /// Accepts everything.
    pub(crate) fn new() -> Self {
        Self::answering(|_| MessageResult::Ok)
    }

    pub(crate) fn answering(
        answer: impl Fn(&OutboxMessage) -> MessageResult + Send + Sync + 'static,
    ) -> Self {
        Self {
            seen: Arc::default(),
            news: Arc::default(),
            answer: Arc::new(answer),
        }
    }

    pub(crate) fn see(&self, message: &OutboxMessage) -> MessageResult {
        self.seen
            .lock()
            .expect("no panic inside")
            .push(message.clone());
        self.news.notify_waiters();
        (self.answer)(message)
    }

    pub(crate) fn seen(&self) -> Vec<OutboxMessage> {
        self.seen.lock().expect("no panic inside").clone()
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.seen().iter().map(text_of).collect()
    }

    /// Waits until so many messages were delivered, and answers all there are.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<OutboxMessage> {
        self.wait_until(|seen| seen.len() >= count).await;
        self.seen()
    }

    /// Waits until what was delivered is as it should be.
    pub(crate) async fn wait_until(&self, enough: impl Fn(&[OutboxMessage]) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                let news = self.news.notified();
                if enough(&self.seen.lock().expect("no panic inside")) {
                    return;
                }
                news.await;
            }
        });
        if waited.await.is_err() {
            panic!("only {} messages: {:?}", self.seen().len(), self.texts());
        }
    }
}

pub(crate) fn text_of(message: &OutboxMessage) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

impl LeasedMessageHandler for Collector {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.see(message)
    }
}

/// One partition, four, and eight.
pub(crate) const ONE: Partitions = Partitions::of(1);
pub(crate) const FOUR: Partitions = Partitions::of(4);
pub(crate) const EIGHT: Partitions = Partitions::of(8);

/// What a start that must fail says.
pub(crate) async fn refusal<DB: Dialect>(builder: OutboxBuilder<DB>) -> OutboxError {
    match builder.start().await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}
