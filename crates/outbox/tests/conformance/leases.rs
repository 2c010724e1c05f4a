//! Leases that are kept for as long as somebody works, and given back when nobody does.

use std::sync::Arc;
use std::time::Duration;

use outbox::{
    LeaseConfig, LeasedMessageHandler, MessageResult, OutboxError, OutboxMessage,
    TransactionalMessageHandler,
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
pub(crate) struct Stuck {
    pub(crate) collector: Collector,
    pub(crate) release: Arc<Notify>,
}

impl Stuck {
    pub(crate) fn new() -> Self {
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
    stage.enqueue_everywhere(outbox, FOUR, "x").await;
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
    stage.signs_of_life(4).await;
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

pub(crate) async fn a_stop_beside_a_locked_partition_gives_the_others_back<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", FOUR).leased(collector);
    let handle = queue.lease(LONG_LEASE).start().await.unwrap();
    stage.enqueue_everywhere(handle.outbox(), FOUR, "x").await;
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 1";
    stage.until(settled, 4).await;
    let mut transaction = stage.pool.begin().await.unwrap();
    // Neither the first nor the last, so that whoever takes one after the other meets it.
    let lock = "SELECT partition_id FROM outbox_processors WHERE partition_id = \
                (SELECT MIN(partition_id) + 1 FROM outbox_partitions) FOR UPDATE";
    DB::run(&mut transaction, lock.to_owned()).await.unwrap();
    handle.stop().await;
    let held = "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL";
    let held = stage.number(held).await;
    transaction.rollback().await.unwrap();
    assert_eq!(held, 1, "the one that is locked");
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
    // Time enough for the second delivery, on a busy machine.
    let lease = LeaseConfig {
        duration: Duration::from_secs(3),
        headroom: Duration::from_millis(500),
    };
    let queue = queue.transactional(Blocked(collector.clone())).lease(lease);
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
