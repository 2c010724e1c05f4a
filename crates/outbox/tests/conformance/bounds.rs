//! What must not grow: tables while messages flow, memory with the backlog, attempts without a try.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use outbox::{
    Batch, EnqueueMessage, HandlerResult, LeaseConfig, LeasedHandler, MessageResult, Outbox,
    OutboxBuilder, OutboxError, WorkerTuning,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::crashes::Worker;
use super::stage::{FOUR, ONE, quick, text_message, text_of};
use super::{Collector, Dialect, Stage};

/// Acks everything and counts it.
#[derive(Clone, Default)]
struct Counter {
    count: Arc<AtomicUsize>,
    news: Arc<Notify>,
}

impl LeasedHandler for Counter {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(usize::MAX);
        batch.ack_chunk(messages);
        self.count.fetch_add(messages.len(), Ordering::SeqCst);
        self.news.notify_waiters();
        HandlerResult::Success
    }
}

impl Counter {
    async fn reaches(&self, count: usize) {
        loop {
            let news = self.news.notified();
            if self.count.load(Ordering::SeqCst) >= count {
                return;
            }
            news.await;
        }
    }
}

/// How long messages flow, how many are on their way at once, and how many go into one transaction.
const FLOW: Duration = Duration::from_millis(2500);
const IN_FLIGHT: usize = 500;
const TOGETHER: usize = 250;

pub(crate) async fn the_vacuum_keeps_up_while_messages_flow<DB: Dialect>(stage: &Stage<DB>) {
    let counter = Counter::default();
    let processor = WorkerTuning::processor_high_throughput().batch_size(250);
    // Four rounds a second, so that the test needs few seconds; by itself it looks once an hour. It
    // shares a permit with the sequencers, who are asked to give it back often.
    let vacuum = WorkerTuning::vacuum().min_interval(Duration::from_millis(250));
    let builder = stage.outbox().processor_tuning(processor);
    let builder = builder.vacuum_tuning(vacuum).partition_batch_limit(4);
    let queue = builder.queue("orders", FOUR).batch_leased(counter.clone());
    let handle = queue.start().await.unwrap();
    let rows: Vec<_> = DB::PASSING
        .iter()
        .map(|table| (*table, AtomicI64::new(0)))
        .collect();
    let over = AtomicBool::new(false);
    let watch = async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        while !over.load(Ordering::SeqCst) {
            looks.tick().await;
            for (table, most) in &rows {
                let count = stage.number(format!("SELECT COUNT(*) FROM {table}")).await;
                most.fetch_max(count, Ordering::SeqCst);
            }
        }
    };
    let produce = async {
        let started = Instant::now();
        let mut sent = 0;
        while started.elapsed() < FLOW {
            let messages: Vec<_> = (0..TOGETHER)
                .map(|number| text_message((sent + number) as u32 % 4, "small"))
                .collect();
            let outbox = handle.outbox();
            let enqueue = outbox.transaction(async |transaction| {
                outbox.enqueue_batch(transaction, "orders", &messages).await
            });
            enqueue.await.expect("enqueue");
            sent += TOGETHER;
            counter.reaches(sent.saturating_sub(IN_FLIGHT)).await;
        }
        over.store(true, Ordering::SeqCst);
        sent
    };
    let (sent, ()) = tokio::join!(produce, watch);
    for table in DB::PASSING {
        let count = format!("SELECT COUNT(*) FROM {table}");
        stage.until(&count, 0).await;
    }
    handle.stop().await;
    for (table, most) in rows {
        let most = most.into_inner();
        // What is on its way, and what was settled since the vacuum's last rounds.
        let bound = (IN_FLIGHT + TOGETHER + sent / 2) as i64;
        assert!(most < bound, "{table} had {most} rows of {sent} messages");
    }
}

/// How long a stranger has a table for itself.
const LOCKED: Duration = Duration::from_secs(20);

pub(crate) async fn statements_that_nobody_waits_for_do_not_pile_up_behind_a_locked_table<
    DB: Dialect,
>(
    stage: &Stage<DB>,
) {
    let Some((lock, unlock)) = DB::LOCKS_QUEUES else {
        return;
    };
    let collector = Collector::new();
    let builder = quick(Outbox::builder(stage.another_pool(8).await)).auto_migrate();
    let queue = builder.queue("orders", FOUR).leased(collector.clone());
    // Processors wait for an answer as long as a lease lasts: short, so that they ask many times.
    let lease = LeaseConfig {
        duration: Duration::from_secs(2),
        headroom: Duration::from_millis(500),
    };
    let handle = queue.lease(lease).start().await.unwrap();
    let outbox = handle.outbox();
    stage.enqueue_everywhere(outbox, FOUR, "before").await;
    collector.wait_for(4).await;
    let mut stranger = stage.pool.acquire().await.unwrap();
    DB::run(&mut stranger, lock.to_owned()).await.unwrap();
    stage.enqueue_everywhere(outbox, FOUR, "meanwhile").await;
    let (locked, mut most) = (Instant::now(), 0);
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    while locked.elapsed() < LOCKED {
        looks.tick().await;
        most = most.max(stage.number(DB::WAITING_FOR_A_TABLE).await);
    }
    DB::run(&mut stranger, unlock.to_owned()).await.unwrap();
    collector.wait_for(8).await;
    handle.stop().await;
    assert!(most > 0, "nobody waited, so nothing was shown");
    // What nobody waits for after two seconds may live for another two: twice as many as have connections.
    assert!(most <= 16, "{most} waited, of a pool of 8");
}

const MEBIBYTE: usize = 1 << 20;
/// Far more than a batch may hold, and twice what the process may grow by.
const BACKLOG: usize = 96;
/// A batch's limit, with the message that goes over it.
const BATCH_BYTES: usize = 17 * MEBIBYTE;
/// Two batches, each as the driver's rows, as they are stored and as they are handed over; and some.
const GROWTH_KIB: usize = 160 * 1024;

/// Takes whatever it gets and tells how much that was at most, and how large the process became.
struct Glutton {
    started_kib: usize,
    handled: AtomicUsize,
    largest: AtomicUsize,
}

/// A line of what the kernel says of this process, in KiB.
fn memory_kib(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|found| found.strip_prefix(line));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl LeasedHandler for Glutton {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(usize::MAX);
        let bytes = messages.iter().map(|message| message.payload.len()).sum();
        self.largest.fetch_max(bytes, Ordering::SeqCst);
        batch.ack_chunk(messages);
        let handled = self.handled.fetch_add(messages.len(), Ordering::SeqCst) + messages.len();
        if handled == BACKLOG {
            let largest = self.largest.load(Ordering::SeqCst);
            let grown = memory_kib("VmHWM:").saturating_sub(self.started_kib);
            println!("swallowed {largest} {grown}");
        }
        HandlerResult::Success
    }
}

/// What the worker process of `memory_does_not_grow_with_the_backlog` runs.
pub(crate) fn glutton<DB: Dialect>(builder: OutboxBuilder<DB>) -> OutboxBuilder<DB> {
    let glutton = Glutton {
        started_kib: memory_kib("VmRSS:"),
        handled: AtomicUsize::new(0),
        largest: AtomicUsize::new(0),
    };
    let tuning = WorkerTuning::processor_low_latency().batch_size(1000);
    let builder = builder.processor_tuning(tuning);
    builder.queue("orders", ONE).batch_leased(glutton)
}

pub(crate) async fn memory_does_not_grow_with_the_backlog<DB: Dialect>(stage: &Stage<DB>) {
    let producer = stage.outbox().queue("orders", ONE).produce_only();
    let producer = producer.start().await.unwrap();
    let outbox = producer.outbox();
    // One batch that is larger than any packet of MySQL or MariaDB.
    let messages = vec![EnqueueMessage::to(0, vec![0; MEBIBYTE], "bytes"); BACKLOG];
    outbox
        .transaction(async |transaction| {
            outbox.enqueue_batch(transaction, "orders", &messages).await
        })
        .await
        .unwrap();
    drop(messages);
    let numbered = "SELECT last_seq FROM outbox_partitions";
    stage.until(numbered, BACKLOG as i64).await;
    producer.stop().await;
    let mut child = Worker::start(stage, "glutton");
    let swallowed = child.tells("swallowed ").await;
    child.kill().await;
    let swallowed = swallowed.split_once(' ').expect("two numbers");
    let (largest, grown): (usize, usize) =
        (swallowed.0.parse().unwrap(), swallowed.1.parse().unwrap());
    assert!(largest <= BATCH_BYTES, "a batch had {largest} bytes");
    assert!(largest > MEBIBYTE, "each came alone, so nothing was shown");
    assert!(grown <= GROWTH_KIB, "the process grew by {grown} KiB");
}

pub(crate) async fn a_payload_far_over_the_limit_leaves_the_transaction_usable<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    outbox
        .transaction(async |transaction| {
            for size in [MEBIBYTE + 1, 64 * MEBIBYTE] {
                let large = EnqueueMessage::to(0, vec![0; size], "bytes");
                let refused = outbox.enqueue(transaction, "orders", large).await;
                assert!(
                    matches!(refused, Err(OutboxError::PayloadTooLarge { size: found, max })
                        if (found, max) == (size, MEBIBYTE)),
                    "{refused:?}"
                );
            }
            let largest = EnqueueMessage::to(0, vec![0; MEBIBYTE], "bytes");
            outbox.enqueue(transaction, "orders", largest).await?;
            // Alone in its batch, which then has no bytes at all.
            let empty = EnqueueMessage::to(0, "", "bytes");
            outbox.enqueue(transaction, "orders", empty).await
        })
        .await
        .unwrap();
    let delivered = collector.wait_for(2).await;
    handle.stop().await;
    let sizes: Vec<_> = delivered
        .iter()
        .map(|message| message.payload.len())
        .collect();
    assert_eq!(sizes, [MEBIBYTE, 0]);
}

pub(crate) async fn pauses_restarts_and_idle_looks_charge_nobody<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("stubborn", 0) => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    // Time for everything below before the second try.
    let tuning = WorkerTuning::processor_low_latency().retry_base(Duration::from_secs(5));
    let start = async || {
        let builder = stage.outbox().processor_tuning(tuning);
        let queue = builder.queue("orders", ONE).leased(collector.clone());
        queue.start().await.unwrap()
    };
    let mut handle = start().await;
    stage
        .enqueue(handle.outbox(), 0, &["stubborn", "next"])
        .await;
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_processors WHERE attempts = 1",
            1,
        )
        .await;
    for round in 0..30 {
        let outbox = handle.outbox();
        outbox.pause("orders", Some(0)).await.unwrap();
        outbox.flush();
        if round % 10 == 0 {
            handle.stop().await;
            handle = start().await;
        } else {
            stage.enqueue(outbox, 0, &["more"]).await;
            outbox.resume("orders", Some(0)).await.unwrap();
            outbox.pause("orders", Some(0)).await.unwrap();
        }
    }
    // Restarts have ended the backoff; what the handler then saw was the second try.
    handle.outbox().resume("orders", None).await.unwrap();
    handle.outbox().resume("orders", Some(0)).await.unwrap();
    collector.wait_for(30).await;
    handle.stop().await;
    let seen = collector.seen();
    let seen: Vec<_> = seen
        .iter()
        .map(|message| (message.seq, message.attempts))
        .collect();
    let expected = [(1, 0), (1, 1)]
        .into_iter()
        .chain((2..=29).map(|seq| (seq, 0)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

pub(crate) async fn attempts_never_overflow<DB: Dialect>(stage: &Stage<DB>) {
    let tries = AtomicUsize::new(0);
    let collector = Collector::answering(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        0..3 => MessageResult::Retry,
        3 => MessageResult::Reject("enough".into()),
        _ => MessageResult::Ok,
    });
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    outbox.pause("orders", None).await.unwrap();
    stage.enqueue(outbox, 0, &["tried for years", "next"]).await;
    let almost = u32::MAX - 1;
    let years = format!("UPDATE outbox_processors SET attempts = {almost}");
    stage.run(years).await;
    outbox.resume("orders", None).await.unwrap();
    collector.wait_for(5).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 2)
        .await;
    let buried = stage.buried(outbox).await;
    handle.stop().await;
    let attempts: Vec<_> = collector
        .seen()
        .iter()
        .map(|message| message.attempts)
        .collect();
    assert_eq!(attempts, [almost, u32::MAX, u32::MAX, u32::MAX, 0]);
    assert_eq!(buried, [(0, 1, u32::MAX, "enough".to_owned())]);
}
