//! What an operator can do, and what the outbox tells of itself: skipping, stats, long handlers,
//! leases that are kept.

use std::sync::Arc;
use std::time::Duration;

use outbox::{
    DeadLetterFilter, LeaseConfig, LeasedMessageHandler, MessageResult, Outbox, OutboxError,
    OutboxMessage, TransactionalMessageHandler, WorkerTuning,
};
use tokio::sync::Notify;

use super::stage::{FOUR, ONE, PATIENCE, refusal, text_of};
use super::{Collector, Dialect, Stage};

/// Short, so that tests see it run out.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(600),
    headroom: Duration::from_millis(100),
};

/// Hangs on the message "stuck" until it is let go, then accepts it like any other.
#[derive(Clone)]
struct Stuck {
    collector: Collector,
    release: Arc<Notify>,
}

impl Stuck {
    fn new() -> Self {
        Self {
            collector: Collector::new(),
            release: Arc::new(Notify::new()),
        }
    }

    async fn see(&self, message: &OutboxMessage) -> MessageResult {
        let answer = self.collector.see(message);
        if text_of(message) == "stuck" {
            self.release.notified().await;
        }
        answer
    }
}

impl LeasedMessageHandler for Stuck {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.see(message).await
    }
}

/// The same inside a transaction.
struct StuckInside(Stuck);

impl<DB: Dialect> TransactionalMessageHandler<DB> for StuckInside {
    async fn handle(&self, _: &mut DB::Connection, message: &OutboxMessage) -> MessageResult {
        self.0.see(message).await
    }
}

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

pub(crate) async fn an_idle_lease_is_renewed_and_kept<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let queue = stage
        .outbox()
        .queue("orders", ONE)
        .leased(collector.clone());
    let handle = queue.lease(LEASE).start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["before"]).await;
    collector.wait_for(1).await;
    let renewals = stage.number("SELECT renewals FROM outbox_processors").await;
    // Several leases long, with nothing to do.
    let kept = format!(
        "SELECT COUNT(*) FROM outbox_processors WHERE renewals > {} AND epoch = 1",
        renewals + 10
    );
    stage.until(&kept, 1).await;
    stage.enqueue(handle.outbox(), 0, &["after"]).await;
    let delivered = collector.wait_for(2).await;
    assert_eq!(delivered[1].epoch, 1, "the lease never changed hands");
    handle.stop().await;
}

pub(crate) async fn a_locked_partition_does_not_keep_others_from_being_renewed<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let queue = stage
        .outbox()
        .queue("orders", FOUR)
        .leased(collector.clone());
    let handle = queue.lease(LEASE).start().await.unwrap();
    let outbox = handle.outbox();
    for partition in 0..4 {
        stage.enqueue(outbox, partition, &["x"]).await;
    }
    collector.wait_for(4).await;
    if !DB::CONCURRENT_WRITERS {
        handle.stop().await;
        return;
    }
    let locked = outbox.partition_ids("orders").unwrap()[0];
    let lock = format!(
        "SELECT partition_id FROM outbox_processors WHERE partition_id = {locked} FOR UPDATE"
    );
    let mut transaction = stage.pool.begin().await.unwrap();
    DB::run(&mut transaction, lock).await.unwrap();
    let renewals = stage
        .number("SELECT MAX(renewals) FROM outbox_processors")
        .await;
    let kept = format!(
        "SELECT COUNT(*) FROM outbox_processors WHERE renewals > {} AND epoch = 1",
        renewals + 6
    );
    stage.until(&kept, 3).await;
    transaction.rollback().await.unwrap();
    handle.stop().await;
}

pub(crate) async fn a_long_handler_keeps_its_lease_while_it_is_renewed<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let stuck = Stuck::new();
    let queue = stage.outbox().queue("orders", ONE).leased(stuck.clone());
    let queue = queue.lease(LEASE).renew_up_to(Duration::from_secs(3600));
    let handle = queue.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["stuck", "next"]).await;
    stuck.collector.wait_for(1).await;
    let renewals = stage.number("SELECT renewals FROM outbox_processors").await;
    let kept = format!(
        "SELECT COUNT(*) FROM outbox_processors WHERE renewals > {} AND epoch = 1",
        renewals + 6
    );
    stage.until(&kept, 1).await;
    stuck.release.notify_one();
    stuck.collector.wait_for(2).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 2)
        .await;
    handle.stop().await;
    let attempts: Vec<_> = stuck
        .collector
        .seen()
        .iter()
        .map(|seen| seen.attempts)
        .collect();
    assert_eq!(attempts, [0, 0], "handled once, and longer than a lease");
}

pub(crate) async fn renewal_has_an_end<DB: Dialect>(stage: &Stage<DB>) {
    let stuck = Stuck::new();
    let queue = stage.outbox().queue("orders", ONE).leased(stuck.clone());
    let queue = queue.lease(LEASE).renew_up_to(LEASE.duration * 2);
    let handle = queue.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["stuck"]).await;
    // Stopped at its limit, and given again.
    let seen = stuck.collector.wait_for(2).await;
    assert_eq!(seen[1].attempts, 1);
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_processors WHERE last_error = 'lease expired'",
            1,
        )
        .await;
    stuck.release.notify_one();
    stage
        .until("SELECT processed_seq FROM outbox_processors", 1)
        .await;
    handle.stop().await;

    let queue = stage.outbox().queue("orders", ONE).leased(stuck.clone());
    let error = refusal(queue.lease(LEASE).renew_up_to(Duration::MAX)).await;
    assert!(error.to_string().contains("at most 24 days"), "{error}");
    let queue = stage.outbox().queue("orders", ONE).leased(Collector::new());
    let error = refusal(queue.lease(LEASE).renew_up_to(Duration::from_millis(599))).await;
    let says = "renew_up_to is 599ms, but must be at least lease.duration, 600ms";
    assert_eq!(error.to_string(), says);
}

pub(crate) async fn a_long_transaction_is_not_cut_off_by_its_lease<DB: Dialect>(stage: &Stage<DB>) {
    let stuck = Stuck::new();
    let queue = stage.outbox().queue("orders", FOUR);
    let queue = queue.transactional(StuckInside(stuck.clone()));
    let queue = queue.lease(LEASE).renew_up_to(Duration::from_secs(20));
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    // Another partition's lease, which must be renewed while the transaction holds this one's row.
    stage.enqueue(outbox, 1, &["other"]).await;
    stuck.collector.wait_for(1).await;
    stage.enqueue(outbox, 0, &["stuck"]).await;
    stuck.collector.wait_for(2).await;
    if DB::CONCURRENT_WRITERS {
        let renewals = "SELECT MAX(renewals) FROM outbox_processors WHERE holder IS NOT NULL";
        let now = stage.number(renewals).await;
        let kept = format!(
            "SELECT COUNT(*) FROM outbox_processors WHERE renewals > {}",
            now + 6
        );
        stage.until(&kept, 1).await;
        let busy = outbox.skip("orders", 0, "not now").await.unwrap_err();
        assert!(
            matches!(busy, OutboxError::PartitionBusy { partition: 0, .. }),
            "{busy}"
        );
        assert!(busy.is_retryable());
    }
    stuck.release.notify_one();
    stage
        .until(
            "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 1",
            2,
        )
        .await;
    handle.stop().await;
    assert_eq!(stuck.collector.texts(), ["other", "stuck"]);
    let epochs = "SELECT COUNT(*) FROM outbox_processors WHERE epoch > 1";
    assert_eq!(stage.number(epochs).await, 0, "no lease was lost");
}

/// Says when it is dropped before its end.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

pub(crate) async fn a_long_handler_is_stopped_when_its_lease_is_lost<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let stopped = Arc::new(Notify::new());
    let (seen, told) = (collector.clone(), Arc::clone(&stopped));
    let handler = move |message: OutboxMessage| {
        let (seen, dropped) = (seen.clone(), Dropped(Arc::clone(&told)));
        async move {
            let _dropped = dropped;
            seen.see(&message);
            std::future::pending().await
        }
    };
    let queue = stage.outbox().queue("orders", ONE).leased(handler);
    let queue = queue.lease(LEASE).renew_up_to(Duration::from_secs(3600));
    let handle = queue.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["x"]).await;
    collector.wait_for(1).await;
    stage
        .run(
            "UPDATE outbox_processors \
             SET epoch = epoch + 1, holder = 'another', lease_until = lease_until + 3600000",
        )
        .await;
    tokio::time::timeout(PATIENCE, stopped.notified())
        .await
        .expect("the handler is told");
    handle.stop().await;
    let untouched = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 0";
    assert_eq!(stage.number(untouched).await, 1);
}

/// Long enough to be renewed several times before it runs out.
const LONG_LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_secs(20),
    headroom: Duration::from_secs(1),
};

pub(crate) async fn a_row_that_is_locked_for_a_while_is_no_lost_lease<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let stuck = Stuck::new();
    let queue = stage.outbox().queue("orders", ONE).leased(stuck.clone());
    let queue = queue.lease(LONG_LEASE).max_attempts(1);
    let queue = queue.renew_up_to(Duration::from_secs(3600));
    let handle = queue.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["stuck"]).await;
    stuck.collector.wait_for(1).await;
    let mut transaction = stage.pool.begin().await.unwrap();
    let lock = "SELECT partition_id FROM outbox_processors FOR UPDATE".to_owned();
    DB::run(&mut transaction, lock).await.unwrap();
    // It says that it is alive right after it has tried to renew.
    let seen = "SELECT MAX(seen_at) FROM outbox_processes";
    for _ in 0..4 {
        let before = stage.number(seen).await;
        let later = format!("SELECT COUNT(*) FROM outbox_processes WHERE seen_at > {before}");
        stage.until(&later, 1).await;
    }
    transaction.rollback().await.unwrap();
    stuck.release.notify_one();
    stage
        .until("SELECT processed_seq FROM outbox_processors", 1)
        .await;
    assert_eq!(stuck.collector.seen().len(), 1, "it was left to finish");
    assert_eq!(stage.buried(handle.outbox()).await, []);
    handle.stop().await;
}

pub(crate) async fn a_stop_gives_idle_partitions_back_at_once_and_keeps_the_busy_one<
    DB: Dialect,
>(
    stage: &Stage<DB>,
) {
    let stuck = Stuck::new();
    let queue = stage.outbox().queue("orders", FOUR).leased(stuck.clone());
    let queue = queue.lease(LEASE).renew_up_to(Duration::from_secs(3600));
    let handle = queue.start().await.unwrap();
    for partition in 0..3 {
        stage.enqueue(handle.outbox(), partition, &["x"]).await;
    }
    stuck.collector.wait_for(3).await;
    stage.enqueue(handle.outbox(), 3, &["stuck"]).await;
    stuck.collector.wait_for(4).await;
    let stop = tokio::spawn(handle.stop());
    let held = "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL";
    stage.until(held, 1).await;
    // Several leases long the handler that is being waited for keeps its partition.
    let renewals = stage
        .number("SELECT MAX(renewals) FROM outbox_processors WHERE holder IS NOT NULL")
        .await;
    let kept = format!(
        "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL AND renewals > {}",
        renewals + 6
    );
    stage.until(&kept, 1).await;
    assert!(!stop.is_finished());
    stuck.release.notify_one();
    assert!(stop.await.unwrap().is_clean());
    assert_eq!(stage.number(held).await, 0);
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 1 AND epoch = 1";
    assert_eq!(stage.number(settled).await, 4);
}

/// Waits in the middle of a statement, for a row that the test has locked, the first time.
struct Blocked(Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for Blocked {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let first = self.0.seen().is_empty();
        let answer = self.0.see(message);
        if first {
            let update = "UPDATE effects SET note = 'mine' WHERE seq = 0".to_owned();
            let _ = DB::run(connection, update).await;
        }
        answer
    }
}

pub(crate) async fn a_handler_stuck_in_a_statement_gives_its_partition_back<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return; // Whoever holds the lock keeps everybody out, and the handler never begins.
    }
    stage.run("INSERT INTO effects VALUES (0, 'locked')").await;
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let queue = queue.transactional(Blocked(collector.clone())).lease(LEASE);
    let handle = queue.start().await.unwrap();
    let mut locked = stage.pool.begin().await.unwrap();
    let lock = "UPDATE effects SET note = 'locked' WHERE seq = 0".to_owned();
    DB::run(&mut locked, lock).await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["x"]).await;
    // The row stays locked; the message is given again and settled all the same.
    stage
        .until("SELECT processed_seq FROM outbox_processors", 1)
        .await;
    assert_eq!(collector.seen().len(), 2);
    locked.rollback().await.unwrap();
    handle.stop().await;
    let mine = "SELECT COUNT(*) FROM effects WHERE note = 'mine'";
    assert_eq!(stage.number(mine).await, 0, "what was stopped left nothing");
}
