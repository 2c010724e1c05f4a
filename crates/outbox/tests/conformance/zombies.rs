//! Holders that outlive their lease: they wake up in a world that went on without them.

use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use outbox::{
    LeaseConfig, LeasedMessageHandler, MessageResult, Outbox, OutboxMessage, Partitions,
    TransactionalMessageHandler, WorkerTuning,
};
use tokio::sync::{Notify, Semaphore};

use super::outcomes::Ledger;
use super::stage::{FOUR, ONE, quick, text_message, text_of};
use super::{Collector, Dialect, Stage};

/// Short, for the tests wait for it to run out.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(700),
    headroom: Duration::from_millis(300),
};

/// Blocks its thread at "contested", so that no timeout can stop it, until it is woken; then answers
/// by its partition.
struct Sleepwalker {
    collector: Collector,
    wake: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Sleepwalker {
    fn walk(&self, message: &OutboxMessage) -> MessageResult {
        let _ = self.collector.see(message);
        if text_of(message) != "contested" {
            return MessageResult::Ok;
        }
        tokio::task::block_in_place(|| {
            let wake = self.wake.lock().expect("no panic inside");
            // Whoever drops the sender wakes everybody, also a test that fails.
            let _ = wake.recv();
        });
        match message.partition {
            0 => MessageResult::Ok,
            1 => MessageResult::Retry,
            2 => MessageResult::Reject("said a zombie".into()),
            _ => panic!("said a zombie"),
        }
    }
}

impl LeasedMessageHandler for Sleepwalker {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.walk(message)
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Sleepwalker {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, 'zombie')", message.seq);
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        self.walk(message)
    }
}

/// Handles nothing before it may.
struct Patient(Collector, Arc<Semaphore>);

impl LeasedMessageHandler for Patient {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        let answer = self.0.see(message);
        self.1.acquire().await.expect("never closed").forget();
        answer
    }
}

pub(crate) async fn a_zombie_that_wakes_up_settles_nothing<DB: Dialect>(stage: &Stage<DB>) {
    let (walker, heir) = (Collector::new(), Collector::new());
    let (wake, woken) = mpsc::channel();
    let zombie = Sleepwalker {
        collector: walker.clone(),
        wake: Arc::new(Mutex::new(woken)),
    };
    let queue = stage.outbox().queue("orders", FOUR).leased(zombie);
    let zombie = queue.lease(LEASE).start().await.unwrap();
    for partition in 0..4 {
        stage
            .enqueue(zombie.outbox(), partition, &["contested", "next"])
            .await;
    }
    walker.wait_for(4).await;

    let builder = quick(Outbox::builder(stage.another_pool(4).await));
    let may_settle = Arc::new(Semaphore::new(0));
    let patient = Patient(heir.clone(), Arc::clone(&may_settle));
    let queue = builder.queue("orders", FOUR).leased(patient);
    let handle = queue.start().await.unwrap();
    // Each partition has a new holder in the middle of the very same message.
    heir.wait_for(4).await;
    drop::<mpsc::Sender<()>>(wake);
    // Stopping waits for what the zombies still try to write.
    assert!(zombie.stop().await.is_clean());
    let untouched = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 0 \
                     AND attempts = 1 AND epoch = 2 AND holder IS NOT NULL";
    assert_eq!(
        stage.number(untouched).await,
        4,
        "as if they had never woken up"
    );
    may_settle.add_permits(8);
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 2 \
                   AND attempts = 0 AND last_error IS NULL";
    stage.until(settled, 4).await;
    assert_eq!(stage.buried(handle.outbox()).await, []);
    handle.stop().await;
    assert_eq!(
        walker.texts(),
        ["contested"; 4],
        "a zombie begins nothing new"
    );
    let attempts = heir.seen().into_iter().map(|message| message.attempts);
    assert_eq!(
        attempts.collect::<Vec<_>>(),
        [0; 8],
        "what it did is charged to nobody"
    );
}

pub(crate) async fn a_zombie_transaction_leaves_no_effect<DB: Dialect>(stage: &Stage<DB>) {
    let (walker, heir) = (Collector::new(), Collector::new());
    let (wake, woken) = mpsc::channel::<()>();
    let zombie = Sleepwalker {
        collector: walker.clone(),
        wake: Arc::new(Mutex::new(woken)),
    };
    let queue = stage.outbox().queue("orders", ONE).transactional(zombie);
    let zombie = queue.lease(LEASE).start().await.unwrap();
    stage
        .enqueue(zombie.outbox(), 0, &["before", "contested", "next"])
        .await;
    walker.wait_for(2).await;
    // On SQLite it has the only write lock there is: nobody can go on before it wakes up.
    let mut wake = Some(wake).filter(|_| DB::CONCURRENT_WRITERS);

    let builder = quick(Outbox::builder(stage.another_pool(4).await));
    let queue = builder
        .queue("orders", ONE)
        .transactional(Ledger(heir.clone()));
    let handle = queue.lease(LEASE).start().await.unwrap();
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 3";
    stage.until(settled, 1).await;
    wake.take();
    zombie.stop().await;
    handle.stop().await;
    let different = stage
        .number("SELECT COUNT(DISTINCT seq) FROM effects")
        .await;
    let all = stage.number("SELECT COUNT(*) FROM effects").await;
    assert_eq!((different, all), (3, 3), "one effect each");
    if DB::CONCURRENT_WRITERS {
        let undone = "SELECT COUNT(*) FROM effects WHERE note = 'zombie'";
        assert_eq!(
            stage.number(undone).await,
            0,
            "the server ended its transaction"
        );
    }
}

/// Takes its time.
struct Slow(Collector);

impl LeasedMessageHandler for Slow {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        tokio::time::sleep(Duration::from_millis(15)).await;
        self.0.see(message)
    }
}

pub(crate) async fn waiting_for_a_turn_is_no_failed_attempt<DB: Dialect>(stage: &Stage<DB>) {
    // Two partitions share one permit, and each turn is longer than a handler's budget.
    let collector = Collector::new();
    let builder = stage.outbox().processors(1);
    let queue = builder.queue("orders", Partitions::of(2));
    let queue = queue.leased(Slow(collector.clone()));
    let handle = queue.lease(LEASE).start().await.unwrap();
    let texts: Vec<_> = (0..42).map(|number| number.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    for partition in 0..2 {
        stage.enqueue(handle.outbox(), partition, &texts).await;
    }
    let delivered = collector.wait_for(84).await;
    handle.stop().await;
    assert_eq!(collector.seen().len(), 84, "each comes once");
    let charged = delivered.iter().filter(|message| message.attempts > 0);
    assert_eq!(charged.count(), 0, "nobody failed");
    let errors = "SELECT COUNT(*) FROM outbox_processors WHERE last_error IS NOT NULL";
    assert_eq!(stage.number(errors).await, 0);
}

/// Says when it handles "first", and waits there until it may go on; takes its time with the rest.
struct Held {
    collector: Collector,
    running: Arc<Notify>,
    may_go_on: Arc<Notify>,
}

impl LeasedMessageHandler for Held {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        let _ = self.collector.see(message);
        if text_of(message) == "first" && message.attempts == 0 {
            self.running.notify_one();
            self.may_go_on.notified().await;
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        MessageResult::Ok
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Held {
    async fn handle(&self, _: &mut DB::Connection, message: &OutboxMessage) -> MessageResult {
        LeasedMessageHandler::handle(self, message).await
    }
}

pub(crate) async fn waiting_for_a_connection_is_no_failed_attempt<DB: Dialect>(stage: &Stage<DB>) {
    for (round, transactional) in (1..).zip([false, true]) {
        let collector = Collector::new();
        let (running, may_go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let held = Held {
            collector: collector.clone(),
            running: Arc::clone(&running),
            may_go_on: Arc::clone(&may_go_on),
        };
        let pool = stage.another_pool(1).await;
        let tuning = WorkerTuning::processor_low_latency().batch_size(1);
        let builder = quick(Outbox::builder(pool.clone())).auto_migrate();
        let queue = builder.processor_tuning(tuning).queue("orders", ONE);
        let builder = if transactional {
            queue.transactional(held)
        } else {
            queue.leased(held)
        };
        let handle = builder.lease(LEASE).start().await.unwrap();
        // By another pool, for this one has its hands full.
        let mut producer = stage.pool.begin_with(DB::BEGIN_WRITING).await.unwrap();
        let messages = ["first", "second", "third"].map(|text| text_message(0, text));
        let enqueued = handle
            .outbox()
            .enqueue_batch(&mut producer, "orders", &messages);
        enqueued.await.unwrap();
        producer.commit().await.unwrap();
        running.notified().await;
        // We stand in line for the only connection before the handler is done with its message.
        let mut acquire = pin!(pool.acquire());
        let at_once = futures_util::poll!(&mut acquire);
        may_go_on.notify_one();
        let connection = match at_once {
            Poll::Ready(connection) => connection.unwrap(),
            Poll::Pending => acquire.await.unwrap(),
        };
        // Nothing tells when a budget is over but the clock.
        tokio::time::sleep(LEASE.handler_budget()).await;
        drop(connection);
        stage
            .until("SELECT processed_seq FROM outbox_processors", 3 * round)
            .await;
        handle.stop().await;
        let seen = collector.seen();
        let seen: Vec<_> = seen
            .iter()
            .map(|message| (text_of(message), message.attempts))
            .collect();
        let expected = ["first", "second", "third"].map(|text| (text.to_owned(), 0));
        assert_eq!(seen, expected, "transactional: {transactional}");
    }
}
