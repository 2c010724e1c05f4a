//! What is done together, ahead of time or a little later, for speed: nobody may notice.

use std::sync::Arc;
use std::time::Duration;

use outbox::{Batch, EnqueueMessage, HandlerResult, LeasedHandler, MessageResult, WorkerTuning};
use tokio::sync::Semaphore;

use super::stage::{ONE, PATIENCE, text_of};
use super::{Collector, Dialect, Stage};

/// Acks everything, and stays with "slow" until it is let go.
#[derive(Clone)]
struct Dawdler {
    collector: Collector,
    go: Arc<Semaphore>,
}

impl LeasedHandler for Dawdler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(usize::MAX);
        for message in messages {
            self.collector.see(message);
            if text_of(message) == "slow" {
                self.go.acquire().await.unwrap().forget();
            }
        }
        batch.ack_chunk(messages);
        HandlerResult::Success
    }
}

const SETTLED: &str = "SELECT processed_seq FROM outbox_processors";

pub(crate) async fn what_was_acked_is_settled_although_the_next_one_is_slow<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let dawdler = Dawdler {
        collector: Collector::new(),
        go: Arc::new(Semaphore::new(0)),
    };
    let one_by_one = WorkerTuning::processor_low_latency().batch_size(1);
    let builder = stage.outbox().processor_tuning(one_by_one);
    let queue = builder.queue("orders", ONE).batch_leased(dawdler.clone());
    let handle = queue.start().await.unwrap();
    // So many that the next ones are read ahead, and in hand with what was acked before.
    let texts: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.extend(["slow", "last"]);
    stage.enqueue(handle.outbox(), 0, &texts).await;
    dawdler.collector.wait_for(41).await;
    stage.until(SETTLED, 40).await;
    dawdler.go.add_permits(1);
    dawdler.collector.wait_for(42).await;
    stage.until(SETTLED, 42).await;
    handle.stop().await;
    assert_eq!(dawdler.collector.texts(), texts, "each once and in order");
}

pub(crate) async fn a_retry_behind_what_is_not_settled_yet_keeps_its_number<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let stubborn = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("stubborn", 0 | 1) => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let one_by_one = WorkerTuning::processor_low_latency()
        .batch_size(1)
        .retry_base(Duration::from_millis(20));
    let builder = stage.outbox().processor_tuning(one_by_one);
    let queue = builder.queue("orders", ONE).leased(stubborn.clone());
    let handle = queue.start().await.unwrap();
    // So many that it comes in one read with those before it, whose settlement is owed when it fails.
    let texts: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.extend(["stubborn", "last"]);
    stage.enqueue(handle.outbox(), 0, &texts).await;
    let seen = stubborn.wait_for(44).await;
    stage.until(SETTLED, 42).await;
    handle.stop().await;
    let numbers: Vec<i64> = seen.iter().map(|message| message.seq).collect();
    let expected: Vec<i64> = (1..=40).chain([41, 41, 41, 42]).collect();
    assert_eq!(numbers, expected);
}

pub(crate) async fn a_stop_settles_what_was_handled<DB: Dialect>(stage: &Stage<DB>) {
    for round in 1..=30 {
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        let text = round.to_string();
        stage.enqueue(handle.outbox(), 0, &[&text]).await;
        collector.wait_for(1).await;
        handle.stop().await;
        assert_eq!(collector.texts(), [text], "nothing comes again");
        assert_eq!(stage.number(SETTLED).await, round);
    }
}

pub(crate) async fn every_connection_of_the_pool_can_still_be_had<DB: Dialect>(stage: &Stage<DB>) {
    let pool = stage.another_pool(8).await;
    let collector = Collector::new();
    let builder = outbox::Outbox::builder(pool.clone()).auto_migrate();
    let queue = builder.queue("orders", ONE).leased(collector.clone());
    let handle = queue.start().await.unwrap();
    for round in 1..=5 {
        for number in 0..8 {
            stage
                .enqueue(handle.outbox(), 0, &[&number.to_string()])
                .await;
        }
        collector.wait_for(round * 8).await;
        let all = (0..8).map(|_| tokio::time::timeout(PATIENCE, pool.acquire()));
        for connection in futures_util::future::join_all(all).await {
            connection
                .expect("somebody keeps it")
                .expect("a connection");
        }
    }
    handle.stop().await;
}

pub(crate) async fn a_batch_with_large_headers_fits<DB: Dialect>(stage: &Stage<DB>) {
    const COUNT: usize = 350;
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    let large = "h".repeat(8000);
    let message = |number: usize| {
        let plain = EnqueueMessage::to(0, number.to_string(), "text/plain");
        (0..4).fold(plain, |message, name| {
            message.header(format!("name-{name}"), &large)
        })
    };
    let messages: Vec<_> = (0..COUNT).map(message).collect();
    let ids = outbox
        .transaction(async |transaction| {
            let messages = &messages;
            outbox.enqueue_batch(transaction, "orders", messages).await
        })
        .await
        .unwrap();
    assert_eq!(ids.len(), COUNT);
    let seen = collector.wait_for(COUNT).await;
    let numbers: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
    assert_eq!(seen.iter().map(text_of).collect::<Vec<_>>(), numbers);
    assert!(seen.iter().all(|message| message.headers.len() == 4));
    handle.stop().await;
}

pub(crate) async fn a_flush_wakes_for_its_own_task_only<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox().clone();
    let mut waits = Vec::new();
    for number in 0..20 {
        let mut transaction = stage.pool.begin().await.unwrap();
        let message = EnqueueMessage::to(0, number.to_string(), "text/plain");
        outbox
            .enqueue(&mut transaction, "orders", message)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        // Somebody else's flush in between must not make ours forget.
        let other = outbox.clone();
        tokio::spawn(async move { other.flush() }).await.unwrap();
        outbox.flush();
        let since = tokio::time::Instant::now();
        collector.wait_for(number + 1).await;
        waits.push(since.elapsed());
    }
    waits.sort_unstable();
    assert!(waits[10] < Duration::from_millis(60), "{waits:?}");
    handle.stop().await;
}
