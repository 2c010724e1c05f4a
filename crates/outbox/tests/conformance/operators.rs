//! What an operator can do, and what the outbox tells of itself: skipping, stats, peeks, the queues of
//! others.

use std::time::Duration;

use outbox::{DeadLetterFilter, MessageResult, Outbox, OutboxError, OutboxMessage, WorkerTuning};

use super::leases::Stuck;
use super::stage::{FOUR, ONE, text_of};
use super::{Collector, Dialect, Stage};

pub(crate) async fn a_skipped_message_is_dead_lettered_and_the_next_one_comes<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let stuck = Stuck::new();
    let handle = stage.outbox().queue("orders", ONE).leased(stuck.clone());
    let handle = handle.start().await.unwrap();
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["stuck", "next", "last"]).await;
    let head = stuck.collector.wait_for(1).await.remove(0);

    let skipped = outbox
        .skip("orders", 0, "an operator said so")
        .await
        .unwrap();
    assert_eq!(skipped, Some(head.id));
    // The handler comes back, goes through the rest of its batch and settles nothing: its lease is
    // gone. The rest comes again, the skipped message does not.
    stuck.release.notify_one();
    stuck.collector.wait_for(5).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 3)
        .await;
    let letters = outbox
        .dead_letter_list(&DeadLetterFilter::new())
        .await
        .unwrap();
    let [letter] = &letters[..] else {
        panic!("one dead letter, not {letters:?}");
    };
    assert_eq!(letter.message_id, head.id);
    assert_eq!(letter.last_error, "an operator said so");
    let texts = stuck.collector.texts();
    assert_eq!(texts, ["stuck", "next", "last", "next", "last"]);
    assert_eq!(
        outbox.skip("orders", 0, "nothing waits").await.unwrap(),
        None
    );
    let error = outbox.skip("orders", 1, "no such place").await.unwrap_err();
    assert!(
        matches!(error, OutboxError::PartitionOutOfRange { max: 0, .. }),
        "{error}"
    );
    handle.stop().await;
}

/// G7: from the process that holds the partition, and from another one.
pub(crate) async fn a_skip_ends_the_backoff_of_what_is_gone<DB: Dialect>(stage: &Stage<DB>) {
    const LONG: Duration = Duration::from_secs(3600);
    let collector = Collector::answering(|message| match &*text_of(message) {
        "failing" => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let patient = WorkerTuning::processor_low_latency();
    let patient = patient.retry_max(LONG).retry_base(LONG);
    let handle = stage.outbox().processor_tuning(patient);
    let handle = handle.queue("orders", ONE).leased(collector.clone());
    let handle = handle.start().await.unwrap();
    let elsewhere = Outbox::builder(stage.another_pool(2).await);
    let elsewhere = elsewhere.without_workers().every_queue();
    let elsewhere = elsewhere.start().await.unwrap();
    for (outbox, count) in [(handle.outbox(), 2), (elsewhere.outbox(), 4)] {
        stage.enqueue(outbox, 0, &["failing", "next"]).await;
        let failing = "SELECT attempts FROM outbox_processors";
        stage.until(failing, 1).await;
        assert!(outbox.skip("orders", 0, "bad").await.unwrap().is_some());
        collector.wait_for(count).await;
        stage.until(failing, 0).await;
    }
    assert_eq!(collector.texts(), ["failing", "next", "failing", "next"]);
    elsewhere.stop().await;
    handle.stop().await;
}

pub(crate) async fn a_paused_partition_can_be_skipped_and_stays_paused<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    outbox.pause("orders", Some(0)).await.unwrap();
    stage.enqueue(outbox, 0, &["bad", "good"]).await;
    stage
        .until("SELECT last_seq FROM outbox_partitions", 2)
        .await;
    assert!(outbox.skip("orders", 0, "bad").await.unwrap().is_some());
    let stats = outbox.stats().await.unwrap().remove(0);
    assert_eq!((stats.paused, stats.pending()), (true, 1));
    assert!(collector.seen().is_empty());
    outbox.resume("orders", Some(0)).await.unwrap();
    collector.wait_for(1).await;
    assert_eq!(collector.texts(), ["good"]);
    handle.stop().await;
}

pub(crate) async fn stats_tell_what_waits_what_fails_and_who_holds_it<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::answering(|message| match &*text_of(message) {
        "failing" => MessageResult::Retry,
        "poison" => MessageResult::Reject("poison".into()),
        _ => MessageResult::Ok,
    });
    let handle = stage.deliver(FOUR, &collector).await;
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["fine", "poison", "fine"]).await;
    stage
        .enqueue(outbox, 2, &["fine", "failing", "behind"])
        .await;
    outbox.pause("orders", Some(3)).await.unwrap();
    stage.enqueue(outbox, 3, &["paused"]).await;
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_processors WHERE attempts >= 2",
            1,
        )
        .await;
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 3",
            1,
        )
        .await;
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_partitions WHERE last_seq = 1",
            1,
        )
        .await;
    let stats = outbox.stats().await.unwrap();
    assert_eq!(stats.len(), 4);
    let [clean, untouched, failing, paused] = &stats[..] else {
        unreachable!("four partitions");
    };
    assert_eq!(
        (&*clean.queue, clean.partition, clean.last_seq),
        ("orders", 0, 3)
    );
    assert_eq!(
        (clean.pending(), clean.attempts, clean.dead_letters),
        (0, 0, 1)
    );
    assert!(clean.holder.is_some() && clean.head_created_at.is_none() && !clean.unsequenced);
    assert_eq!((untouched.last_seq, untouched.dead_letters), (0, 0));
    assert_eq!((failing.processed_seq, failing.pending()), (1, 2));
    assert!(failing.attempts >= 2 && failing.last_error.is_some());
    assert!(failing.head_created_at.is_some());
    assert_eq!((paused.paused, paused.pending()), (true, 1));
    handle.stop().await;
}

pub(crate) async fn a_peek_shows_what_waits_and_changes_nothing<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(FOUR, &collector).await;
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["settled", "too"]).await;
    collector.wait_for(2).await;
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 2";
    stage.until(settled, 1).await;
    outbox.pause("orders", None).await.unwrap();
    // Two runs, where there are any.
    stage.enqueue(outbox, 0, &["a", "b", "c"]).await;
    stage
        .until("SELECT MAX(last_seq) FROM outbox_partitions", 5)
        .await;
    stage.enqueue(outbox, 0, &["d", "e"]).await;
    stage
        .until("SELECT MAX(last_seq) FROM outbox_partitions", 7)
        .await;

    let peek = async |from, limit| {
        let peeked = outbox.peek("orders", 0, from, limit).await.unwrap();
        let told = |message: &OutboxMessage| (message.seq, text_of(message));
        peeked.iter().map(told).collect::<Vec<_>>()
    };
    let waiting = [(3, "a"), (4, "b"), (5, "c"), (6, "d"), (7, "e")];
    let waiting = waiting.map(|(seq, text)| (seq, text.to_owned()));
    assert_eq!(peek(None, 10).await, waiting);
    assert_eq!(peek(None, 4).await, waiting[..4]);
    assert_eq!(peek(None, 1).await, waiting[..1]);
    assert_eq!(
        peek(Some(1), 2).await,
        waiting[..2],
        "what is settled is not shown"
    );
    assert_eq!(peek(Some(4), 3).await, waiting[1..4]);
    assert_eq!(peek(Some(6), 10).await, waiting[3..]);
    assert_eq!(peek(Some(8), 10).await, []);
    assert_eq!(peek(Some(i64::MIN), u32::MAX).await, waiting);
    assert_eq!(peek(Some(i64::MAX), u32::MAX).await, []);
    assert_eq!(outbox.peek("orders", 1, None, 10).await.unwrap(), []);
    let refused = outbox.peek("orders", 4, None, 10).await.unwrap_err();
    assert!(matches!(refused, OutboxError::PartitionOutOfRange { .. }));

    assert_eq!(collector.texts(), ["settled", "too"]);
    // Only the one that was looked at is skipped.
    let [a, b] = [0, 1].map(|place| outbox.peek("orders", 0, Some(3 + place), 1));
    let (a, b) = (a.await.unwrap()[0].id, b.await.unwrap()[0].id);
    let skip = async |id| {
        outbox
            .skip_message("orders", 0, id, "by hand")
            .await
            .unwrap()
    };
    let epoch = async || outbox.stats().await.unwrap()[0].epoch;
    let before = epoch().await;
    assert!(!skip(b).await, "it is not the first");
    assert_eq!(epoch().await, before, "and nobody loses a lease over it");
    assert!(skip(a).await);
    assert!(!skip(a).await, "it is gone");
    outbox.resume("orders", None).await.unwrap();
    collector.wait_for(6).await;
    assert_eq!(collector.texts()[2..], ["b", "c", "d", "e"]);
    handle.stop().await;
}

pub(crate) async fn a_tool_knows_the_queues_of_others<DB: Dialect>(stage: &Stage<DB>) {
    let orders = stage.outbox().queue("orders", FOUR).produce_only();
    let others = orders.queue("mail", ONE).produce_only();
    let others = others.start().await.unwrap();
    let tool = stage.outbox().without_workers().every_queue();
    let tool = tool.start().await.unwrap();
    let outbox = tool.outbox();
    let known: Vec<_> = outbox.queues().into_iter().collect();
    let known = known
        .iter()
        .map(|(name, partitions)| (name.as_str(), *partitions));
    assert_eq!(known.collect::<Vec<_>>(), [("mail", ONE), ("orders", FOUR)]);
    stage.enqueue(outbox, 3, &["from a tool"]).await;
    stage
        .until("SELECT MAX(last_seq) FROM outbox_partitions", 1)
        .await;
    assert_eq!(
        text_of(&outbox.peek("orders", 3, None, 1).await.unwrap()[0]),
        "from a tool"
    );
    assert_eq!(outbox.stats().await.unwrap().len(), 5);
    tool.stop().await;
    others.stop().await;
}
