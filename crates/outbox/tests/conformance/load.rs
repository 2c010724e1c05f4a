//! Producers at full load beside several sequencers and processors: nobody is hurt, nothing is lost,
//! doubled or out of order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    EnqueueMessage, MessageResult, Outbox, OutboxBuilder, OutboxHandle, OutboxMessage, Partitions,
    TransactionalMessageHandler, WorkerTuning,
};
use sqlx::pool::PoolOptions;
use sqlx::{Pool, Transaction};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::outcomes::Ledger;
use super::peers::MANY;
use super::stage::{quick, text_message, text_of};
use super::{Collector, Dialect, Stage};

const PRODUCERS: usize = 8;
const TRANSACTIONS: usize = 60;
/// Two, so that every partition has several producers and several sequencers at any time.
const PARTITIONS: u32 = 2;
/// How many other transactions a late one stays open for.
const LATE: usize = 15;

/// When a message was enqueued and its commit had been answered, on one clock for all producers.
#[derive(Clone, Copy)]
struct Life {
    enqueued: u64,
    committed: u64,
}

/// A transaction, what it has enqueued and when.
struct Open<DB: Dialect> {
    transaction: Transaction<'static, DB>,
    enqueued: Vec<(String, u64)>,
    commits_at: usize,
}

/// What all producers share.
struct Production<DB: Dialect> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    clock: AtomicU64,
    lives: Mutex<HashMap<String, Life>>,
}

impl<DB: Dialect> Production<DB> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// One transaction after the other, and at times one that stays open while others come and go.
    async fn run(&self, producer: usize) {
        let mut late: Option<Open<DB>> = None;
        for number in 0..TRANSACTIONS {
            if late.as_ref().is_some_and(|late| late.commits_at <= number) {
                self.commit(late.take()).await;
            }
            let open = self.enqueue(producer, number).await;
            if DB::CONCURRENT_WRITERS && number % 10 == 3 && late.is_none() {
                late = Some(open);
            } else if (producer + number).is_multiple_of(2) {
                open.transaction.rollback().await.expect("roll back");
            } else {
                self.commit(Some(open)).await;
            }
        }
        self.commit(late).await;
    }

    /// Enqueues to several partitions.
    async fn enqueue(&self, producer: usize, number: usize) -> Open<DB> {
        let begin = self.pool.begin_with(DB::BEGIN_WRITING).await;
        let mut transaction = begin.expect("begin");
        let mut enqueued = Vec::new();
        for part in 0..2 + number % 3 {
            // Forwards and backwards through the partitions, and twice to the same: locks in any order.
            let partition = (producer + number + part / 2 * (1 + producer % 2)) as u32 % PARTITIONS;
            let texts = ["a", "b"].map(|twin| format!("{producer}/{number}/{part}/{twin}"));
            let message =
                |text: &String| EnqueueMessage::to(partition, text.as_str(), "text/plain");
            let messages = texts.each_ref().map(message);
            let tick = self.tick();
            let ids = self
                .outbox
                .enqueue_batch(&mut transaction, "orders", &messages);
            assert_eq!(ids.await.expect("a producer was hurt").len(), 2);
            enqueued.extend(texts.map(|text| (text, tick)));
            tokio::task::yield_now().await;
        }
        Open {
            transaction,
            enqueued,
            commits_at: number + LATE,
        }
    }

    async fn commit(&self, open: Option<Open<DB>>) {
        let Some(open) = open else { return };
        let commit = open.transaction.commit().await;
        commit.expect("a producer was hurt at its commit");
        let committed = self.tick();
        let mut lives = self.lives.lock().expect("no panic inside");
        for (text, enqueued) in open.enqueued {
            lives.insert(
                text,
                Life {
                    enqueued,
                    committed,
                },
            );
        }
    }
}

pub(crate) async fn producers_are_never_hurt<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let partitions = Partitions::of(PARTITIONS as _);
    // One process takes small steps, so that what is new takes several of them; both number the same
    // partitions all the time.
    let steps = WorkerTuning::sequencer_low_latency().batch_size(7);
    let one = stage.outbox().sequencer_tuning(steps).maintenance(2, 2);
    let one = one.queue("orders", partitions);
    let one = one.leased(collector.clone()).start().await.unwrap();
    let two = quick(Outbox::builder(stage.another_pool(8).await));
    let two = two.maintenance(2, 2).queue("orders", partitions);
    let two = two.leased(collector.clone()).start().await.unwrap();
    let production = Production {
        pool: stage.another_pool(2 * PRODUCERS as u32).await,
        outbox: one.outbox().clone(),
        clock: AtomicU64::new(0),
        lives: Mutex::default(),
    };
    let producers = (0..PRODUCERS).map(|producer| production.run(producer));
    futures_util::future::join_all(producers).await;
    let lives = production.lives.into_inner().expect("no panic inside");
    let committed = lives.len();
    assert!(
        committed > PRODUCERS * TRANSACTIONS,
        "{committed} were committed"
    );
    let delivered = collector.wait_for(committed).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    one.stop().await;
    two.stop().await;
    assert_eq!(
        collector.seen().len(),
        committed,
        "nothing twice, nothing rolled back"
    );
    check_order(&delivered, &lives);
}

/// Sequence numbers are dense; nothing that was committed before a message was enqueued comes after
/// it; messages of one transaction keep their order.
fn check_order(delivered: &[OutboxMessage], lives: &HashMap<String, Life>) {
    for partition in 0..PARTITIONS {
        let mine = delivered
            .iter()
            .filter(|message| message.partition == partition);
        let mine: Vec<_> = mine.collect();
        let mut last_of: HashMap<String, String> = HashMap::new();
        for (expected, message) in (1..).zip(&mine) {
            assert_eq!(message.seq, expected, "dense and ascending");
            let text = text_of(message);
            let transaction = text.split('/').take(2).collect::<Vec<_>>().join("/");
            if let Some(before) = last_of.insert(transaction, text.clone()) {
                assert!(before < text, "{before} before {text}");
            }
        }
        let mut earliest_commit = u64::MAX;
        for message in mine.into_iter().rev() {
            let life = lives[&text_of(message)];
            assert!(
                earliest_commit > life.enqueued,
                "{} is too early",
                text_of(message)
            );
            earliest_commit = earliest_commit.min(life.committed);
        }
    }
}

pub(crate) async fn a_queue_changes_its_mode_in_a_rolling_deployment<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let (old, new) = (Collector::new(), Collector::new());
    let queue = stage.outbox().queue("orders", MANY);
    let old_process = queue.transactional(Ledger(old.clone()));
    let old_process = old_process.start().await.unwrap();
    let outbox = old_process.outbox().clone();
    let mut sent = 0;
    let mut send = async |rounds: usize| {
        for round in 0..rounds {
            let partition = (round % 16) as u32;
            stage.enqueue(&outbox, partition, &["x", "y", "z"]).await;
        }
        sent += 3 * rounds;
        sent
    };
    send(32).await;
    let builder = quick(Outbox::builder(stage.another_pool(6).await));
    let new_process = builder.queue("orders", MANY).leased(new.clone());
    let new_process = new_process.start().await.unwrap();
    // Both work beside each other until each has had its share.
    while new.seen().is_empty() {
        let sent = send(16).await;
        assert!(sent < 30_000, "the new process gets nothing");
    }
    send(32).await;
    assert!(old_process.stop().await.is_clean());
    let sent = send(32).await;
    new.wait_until(|seen| old.seen().len() + seen.len() >= sent)
        .await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    new_process.stop().await;
    assert_eq!(
        old.seen().len() + new.seen().len(),
        sent,
        "each once, whoever handled it"
    );
    let effects = stage.number("SELECT COUNT(*) FROM effects").await;
    assert_eq!(
        effects,
        old.seen().len() as i64,
        "an effect for each that the old one handled"
    );
    for partition in 0..16 {
        let all = old.seen().into_iter().chain(new.seen());
        let mut seqs: Vec<_> = all
            .filter(|m| m.partition == partition)
            .map(|m| m.seq)
            .collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
    }
}

pub(crate) async fn four_processes_number_a_partition_without_holes<DB: Dialect>(
    stage: &Stage<DB>,
) {
    // None has a handler: all they do is number one partition, all of them all the time.
    let mut processes = Vec::new();
    for _ in 0..4 {
        let builder = quick(Outbox::builder(stage.another_pool(4).await)).auto_migrate();
        let queue = builder.queue("orders", Partitions::of(1)).produce_only();
        processes.push(queue.start().await.unwrap());
    }
    let sizes = |producer, number| 1 + (producer + number) % 5;
    let produce = async |producer: usize| {
        for number in 0..40 {
            let texts =
                (0..sizes(producer, number)).map(|part| format!("{producer}/{number}/{part}"));
            let messages: Vec<_> = texts.map(|text| text_message(0, &text)).collect();
            let begin = stage.pool.begin_with(DB::BEGIN_WRITING).await;
            let mut transaction = begin.expect("begin");
            let outbox = processes[producer].outbox();
            let enqueued = outbox.enqueue_batch(&mut transaction, "orders", &messages);
            enqueued.await.expect("a producer was hurt");
            let committed = transaction.commit().await;
            committed.expect("a producer was hurt at its commit");
            for process in &processes {
                process.outbox().flush();
            }
        }
    };
    futures_util::future::join_all((0..4).map(produce)).await;
    let numbers = |producer| {
        (0..40).flat_map(move |number| (0..sizes(producer, number)).map(move |part| (number, part)))
    };
    let sent: usize = (0..4).map(|producer| numbers(producer).count()).sum();
    let last = "SELECT last_seq FROM outbox_partitions";
    stage.until(last, sent as i64).await;
    for process in processes {
        process.stop().await;
    }
    let collector = Collector::new();
    let handle = stage.deliver(Partitions::of(1), &collector).await;
    let delivered = collector.wait_for(sent).await;
    handle.stop().await;
    let seqs: Vec<_> = delivered.iter().map(|message| message.seq).collect();
    assert_eq!(seqs, (1..=sent as i64).collect::<Vec<_>>());
    assert_eq!(stage.number(last).await, sent as i64);
    for producer in 0..4 {
        let mut texts = collector.texts();
        texts.retain(|text| text.starts_with(&format!("{producer}/")));
        let expected =
            numbers(producer).map(|(number, part)| format!("{producer}/{number}/{part}"));
        assert_eq!(texts, expected.collect::<Vec<_>>(), "each once, in order");
    }
}

/// An outbox with a pool that an application may have, and whose producers do not wait for long.
async fn with_ten_connections<DB: Dialect>(stage: &Stage<DB>) -> OutboxBuilder<DB> {
    let options = stage.pool.connect_options();
    let pool = PoolOptions::<DB>::new()
        .max_connections(10)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with((*options).clone())
        .await
        .expect("a pool");
    quick(Outbox::builder(pool)).auto_migrate()
}

/// Delivers many partitions with such a pool. Each has handled a message.
async fn deliver_with_ten_connections<DB: Dialect>(
    stage: &Stage<DB>,
    collector: &Collector,
) -> OutboxHandle<DB> {
    let builder = with_ten_connections(stage).await;
    let queue = builder.queue("orders", MANY).leased(collector.clone());
    let handle = queue.start().await.unwrap();
    stage
        .enqueue_everywhere(handle.outbox(), MANY, "before")
        .await;
    collector.wait_for(16).await;
    handle
}

pub(crate) async fn rows_that_a_stranger_has_locked_take_no_producers_connection<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let collector = Collector::new();
    let handle = deliver_with_ten_connections(stage, &collector).await;
    let mut stranger = stage.pool.begin().await.unwrap();
    let lock = "SELECT * FROM outbox_processors FOR UPDATE".to_owned();
    DB::run(&mut stranger, lock).await.unwrap();
    for _ in 0..3 {
        // Every partition has work and waits for its row; the process lives on.
        stage
            .enqueue_everywhere(handle.outbox(), MANY, "meanwhile")
            .await;
        stage.signs_of_life(2).await;
    }
    assert_eq!(collector.seen().len(), 16);
    stranger.rollback().await.unwrap();
    collector.wait_for(4 * 16).await;
    handle.stop().await;
    assert_eq!(collector.seen().len(), 4 * 16, "each once");
}

pub(crate) async fn rows_that_a_stranger_has_locked_stop_no_other_partition<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let collector = Collector::new();
    let handle = deliver_with_ten_connections(stage, &collector).await;
    let outbox = handle.outbox();
    let ids = outbox.partition_ids("orders").unwrap();
    let mut stranger = stage.pool.begin().await.unwrap();
    // More of them than may wait at once, one by one: a statement that scans locks them all.
    for id in &ids[..12] {
        let lock = format!("SELECT * FROM outbox_processors WHERE partition_id = {id} FOR UPDATE");
        DB::run(&mut stranger, lock).await.unwrap();
    }
    let started = Instant::now();
    for round in 1..=3 {
        stage.enqueue_everywhere(outbox, MANY, "meanwhile").await;
        collector.wait_for(16 + round * 4).await;
    }
    let took = started.elapsed();
    stranger.rollback().await.unwrap();
    collector.wait_for(4 * 16).await;
    handle.stop().await;
    // One that waits by itself does so for as long as its lease.
    assert!(took < Duration::from_secs(25), "the others took {took:?}");
}

/// Keeps its connection until it is let go on.
struct Hanging {
    began: Collector,
    goes_on: Arc<Semaphore>,
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Hanging {
    async fn handle(&self, _: &mut DB::Connection, message: &OutboxMessage) -> MessageResult {
        let answer = self.began.see(message);
        let _turn = self.goes_on.acquire().await;
        answer
    }
}

pub(crate) async fn handlers_that_hang_leave_connections_to_others<DB: Dialect>(stage: &Stage<DB>) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let (began, goes_on) = (Collector::new(), Arc::new(Semaphore::new(0)));
    let hanging = Hanging {
        began: began.clone(),
        goes_on: Arc::clone(&goes_on),
    };
    let collector = Collector::new();
    let builder = with_ten_connections(stage).await;
    let queue = builder.queue("invoices", MANY).transactional(hanging);
    let queue = queue.queue("orders", MANY).leased(collector.clone());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let invoices: Vec<_> = (0..16).map(|index| text_message(index, "x")).collect();
    let mut transaction = stage.pool.begin().await.unwrap();
    let enqueued = outbox.enqueue_batch(&mut transaction, "invoices", &invoices);
    enqueued.await.unwrap();
    transaction.commit().await.unwrap();
    began.wait_for(5).await;
    // While they hang, producers get connections, and so do those who settle.
    for _ in 0..3 {
        stage.enqueue_everywhere(outbox, MANY, "meanwhile").await;
        stage.signs_of_life(1).await;
    }
    collector.wait_for(3 * 16).await;
    let waiting = "SELECT COUNT(*) FROM outbox_messages";
    stage.until(waiting, 16).await;
    assert_eq!(began.seen().len(), 5, "half of the connections");
    goes_on.add_permits(16);
    stage.until(waiting, 0).await;
    handle.stop().await;
    assert_eq!(began.seen().len(), 16, "each once");
    assert_eq!(collector.seen().len(), 3 * 16, "each once");
}
