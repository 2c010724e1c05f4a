//! Several processes on one queue, and what is refused at the start. A process is an outbox with a
//! pool of its own.

use std::collections::HashSet;
use std::time::Duration;

use outbox::{LeaseConfig, MessageResult, Outbox, OutboxError, Partitions, WorkerTuning};
use tokio::time::Instant;

use super::outcomes::Ledger;
use super::stage::{FOUR, ONE, quick, refusal, text_message, text_of};
use super::{Collector, Dialect, Stage};

pub(crate) async fn two_processes_share_a_queue_without_doubling<DB: Dialect>(stage: &Stage<DB>) {
    let (first, second) = (Collector::new(), Collector::new());
    let one = stage
        .outbox()
        .queue("orders", Partitions::of(16))
        .transactional(Ledger(first.clone()));
    let one = one.start().await.unwrap();
    let pool = stage.another_pool(8).await;
    let two = quick(Outbox::builder(pool)).queue("orders", Partitions::of(16));
    let two = two
        .transactional(Ledger(second.clone()))
        .start()
        .await
        .unwrap();
    // Both have heard of each other before the work comes.
    stage
        .until("SELECT COUNT(*) FROM outbox_processes", 2)
        .await;
    let mut sent = 0;
    while first.seen().is_empty() || second.seen().is_empty() {
        for partition in 0..16 {
            stage
                .enqueue(one.outbox(), partition, &["x", "y", "z"])
                .await;
        }
        sent += 48;
        assert!(sent < 48_000, "one process does everything");
    }
    stage.until("SELECT COUNT(*) FROM effects", sent).await;
    one.stop().await;
    two.stop().await;
    assert_eq!(
        (first.seen().len() + second.seen().len()) as i64,
        sent,
        "no message twice"
    );
}

pub(crate) async fn processes_that_have_gone_are_forgotten_whatever_the_clock_said<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let handle = stage.deliver(ONE, &Collector::new()).await;
    stage
        .until("SELECT COUNT(*) FROM outbox_processes", 1)
        .await;
    let now = stage
        .number("SELECT MAX(seen_at) FROM outbox_processes")
        .await;
    for seen in [now - 3_600_000, now + 3_600_000] {
        let ghost = format!(
            "INSERT INTO outbox_processes (incarnation, queues, host, version, started_at, seen_at)
             VALUES ('ghost-{seen}', '[]', 'elsewhere', '0', {seen}, {seen})"
        );
        stage.run(ghost).await;
    }
    stage
        .until("SELECT COUNT(*) FROM outbox_processes", 1)
        .await;
    handle.stop().await;
    let left = stage.number("SELECT COUNT(*) FROM outbox_processes").await;
    assert_eq!(left, 0, "who stops leaves nothing behind");
}

pub(crate) async fn a_stopped_process_is_replaced_at_once<DB: Dialect>(stage: &Stage<DB>) {
    let (first, second) = (Collector::new(), Collector::new());
    // A lease of an hour: only a release can make the partition free in time.
    let lease = LeaseConfig {
        duration: Duration::from_secs(3600),
        headroom: Duration::from_secs(1),
    };
    let one = stage
        .outbox()
        .queue("orders", FOUR)
        .leased(first.clone())
        .lease(lease);
    let one = one.start().await.unwrap();
    for partition in 0..4 {
        stage.enqueue(one.outbox(), partition, &["before"]).await;
    }
    first.wait_for(4).await;
    assert!(one.stop().await.is_clean());
    let held = "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL";
    assert_eq!(stage.number(held).await, 0);
    let two = stage
        .outbox()
        .queue("orders", FOUR)
        .leased(second.clone())
        .lease(lease);
    let two = two.start().await.unwrap();
    for partition in 0..4 {
        stage.enqueue(two.outbox(), partition, &["after"]).await;
    }
    let started = Instant::now();
    let delivered = second.wait_for(4).await;
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "taken over in {:?}",
        started.elapsed()
    );
    assert!(
        delivered
            .iter()
            .all(|message| message.seq == 2 && message.attempts == 0)
    );
    two.stop().await;
}

pub(crate) async fn another_process_hears_of_new_work_at_once<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let pool = stage.another_pool(4).await;
    let producer = quick(Outbox::builder(pool)).queue("orders", ONE);
    let producer = producer.produce_only().start().await.unwrap();
    stage.enqueue(producer.outbox(), 0, &["warm up"]).await;
    collector.wait_for(1).await;
    let mut waits = Vec::new();
    for number in 0..31 {
        let started = Instant::now();
        stage.enqueue(producer.outbox(), 0, &["x"]).await;
        collector.wait_for(number + 2).await;
        waits.push(started.elapsed());
    }
    waits.sort();
    assert!(
        waits[15] < DB::HEARD_WITHIN,
        "in the middle {:?}",
        waits[15]
    );
    producer.stop().await;
    handle.stop().await;
}

pub(crate) async fn a_zombie_settles_nothing<DB: Dialect>(stage: &Stage<DB>) {
    // The handler loses its lease while it runs: somebody else has the partition now.
    let collector = Collector::new();
    let stolen = Collector::answering(|_| MessageResult::Ok);
    let pool = stage.pool.clone();
    let thief = Thief {
        pool,
        collector: collector.clone(),
        change: "epoch = epoch + 1, holder = 'somebody else', lease_until = lease_until + 3600000",
    };
    let handle = stage
        .outbox()
        .queue("orders", ONE)
        .leased(thief)
        .start()
        .await
        .unwrap();
    stage.enqueue(handle.outbox(), 0, &["contested"]).await;
    collector.wait_for(1).await;
    // What the zombie acked was not written; the message is still there for the new holder.
    let untouched = "SELECT COUNT(*) FROM outbox_processors \
                     WHERE processed_seq = 0 AND holder = 'somebody else'";
    stage.until(untouched, 1).await;
    handle.stop().await;
    assert_eq!(stage.number(untouched).await, 1);
    stage
        .run("UPDATE outbox_processors SET lease_until = 0")
        .await;
    let heir = stage.deliver(ONE, &stolen).await;
    let delivered = stolen.wait_for(1).await;
    assert_eq!(text_of(&delivered[0]), "contested");
    heir.stop().await;
}

pub(crate) async fn a_cursor_never_moves_back<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let thief = Thief {
        pool: stage.pool.clone(),
        collector: collector.clone(),
        change: "processed_seq = 3",
    };
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.leased(thief).start().await.unwrap();
    stage
        .enqueue(handle.outbox(), 0, &["settled long ago"])
        .await;
    collector.wait_for(1).await;
    handle.stop().await;
    assert_eq!(
        stage
            .number("SELECT processed_seq FROM outbox_processors")
            .await,
        3
    );
}

/// Changes its own partition's state behind the outbox's back while it handles a message.
struct Thief<DB: Dialect> {
    pool: sqlx::Pool<DB>,
    collector: Collector,
    change: &'static str,
}

impl<DB: Dialect> outbox::LeasedMessageHandler for Thief<DB> {
    async fn handle(&self, message: &outbox::OutboxMessage) -> MessageResult {
        let mut connection = self.pool.acquire().await.expect("a connection");
        let change = format!("UPDATE outbox_processors SET {}", self.change);
        DB::run(&mut connection, change)
            .await
            .expect("change the state");
        self.collector.see(message)
    }
}

pub(crate) async fn ten_processes_start_at_once_on_an_empty_schema<DB: Dialect>(stage: &Stage<DB>) {
    let starts = (0..10).map(|_| async {
        let pool = stage.another_pool(3).await;
        let builder = quick(Outbox::builder(pool)).auto_migrate();
        builder
            .queue("orders", FOUR)
            .leased(Collector::new())
            .start()
            .await
            .unwrap()
    });
    let processes = futures_util::future::join_all(starts).await;
    let ids: HashSet<_> = processes
        .iter()
        .map(|process| process.outbox().partition_ids("orders").unwrap())
        .collect();
    assert_eq!(ids.len(), 1, "all see the same partitions");
    futures_util::future::join_all(processes.into_iter().map(|process| process.stop())).await;
}

pub(crate) async fn another_partition_count_is_refused<DB: Dialect>(stage: &Stage<DB>) {
    let handle = stage
        .outbox()
        .queue("orders", FOUR)
        .produce_only()
        .start()
        .await
        .unwrap();
    handle.stop().await;
    let error = refusal(stage.outbox().queue("orders", ONE).produce_only()).await;
    assert_eq!(
        error.to_string(),
        r#"queue "orders" has 4 partitions in the database, not 1"#
    );
}

pub(crate) async fn bad_configuration_is_refused_before_anything_runs<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let unmigrated = Outbox::builder(stage.pool.clone())
        .queue("orders", ONE)
        .produce_only();
    let error = refusal(unmigrated).await;
    assert!(
        matches!(error, OutboxError::SchemaVersion { found: 0, .. }),
        "{error}"
    );

    let no_time = LeaseConfig {
        duration: Duration::from_secs(1),
        headroom: Duration::from_secs(1),
    };
    let queue = || stage.outbox().queue("orders", ONE);
    for (builder, message) in [
        (
            queue().produce_only().lease(no_time),
            "lease.headroom is 1s",
        ),
        (queue().produce_only().max_attempts(0), "max_attempts is 0"),
        (
            stage
                .outbox()
                .max_attempts(3)
                .queue("orders", ONE)
                .produce_only(),
            "max_attempts is",
        ),
        (
            queue().produce_only().queue("orders", ONE).produce_only(),
            "must be named once",
        ),
        (
            stage.outbox().queue("no good", ONE).produce_only(),
            "invalid queue name",
        ),
        (queue().produce_only().processors(0), "processors is 0"),
        (
            queue().produce_only().origin("eu west"),
            "origin is \"eu west\"",
        ),
        (
            queue().produce_only().table_prefix("x; DROP TABLE y"),
            "table_prefix is",
        ),
        (
            queue()
                .produce_only()
                .processor_tuning(WorkerTuning::processor().batch_size(0)),
            "batch_size is 0",
        ),
        (
            queue().produce_only().partition_batch_limit(0),
            "sequencer.partition_batch_limit is 0",
        ),
    ] {
        let error = refusal(builder).await;
        assert!(error.to_string().contains(message), "{error}");
    }
}

pub(crate) async fn lost_connections_are_survived<DB: Dialect>(stage: &Stage<DB>) {
    let (leased, transactional) = (Collector::new(), Collector::new());
    let builder = quick(Outbox::builder(stage.another_pool(6).await)).auto_migrate();
    let handle = builder
        .queue("orders", ONE)
        .transactional(Ledger(transactional.clone()))
        .queue("mail", ONE)
        .leased(leased.clone())
        .start()
        .await
        .unwrap();
    // The producer has a connection of its own that nobody cuts, and cuts all others.
    let mut own = stage.another_pool(1).await.acquire().await.unwrap();
    for round in 0..10 {
        let batch: Vec<_> = (0..50)
            .map(|n| text_message(0, &(round * 50 + n).to_string()))
            .collect();
        for queue in ["orders", "mail"] {
            DB::run(&mut own, "BEGIN".to_owned()).await.unwrap();
            handle
                .outbox()
                .enqueue_batch(&mut own, queue, &batch)
                .await
                .unwrap();
            DB::run(&mut own, "COMMIT".to_owned()).await.unwrap();
        }
        if !DB::cut_connections(&mut own).await.unwrap() {
            break;
        }
        leased.wait_for(round * 50 + 1).await;
    }
    let expected = if DB::CONCURRENT_WRITERS { 500 } else { 50 };
    let settled = "SELECT CASE WHEN MIN(processed_seq) = MAX(processed_seq) \
                   THEN MIN(processed_seq) ELSE 0 END FROM outbox_processors";
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while DB::number(&mut own, settled.to_owned()).await.unwrap() < expected {
        look.tick().await;
    }
    handle.stop().await;
    for effects in [
        "SELECT COUNT(*) FROM effects",
        "SELECT COUNT(DISTINCT seq) FROM effects",
    ] {
        assert_eq!(
            DB::number(&mut own, effects.to_owned()).await.unwrap(),
            expected
        );
    }
    // At least once, each first time in order.
    let mut first_times: Vec<_> = leased.seen().iter().map(|message| message.seq).collect();
    let mut seen = HashSet::new();
    first_times.retain(|seq| seen.insert(*seq));
    assert_eq!(first_times, (1..=expected).collect::<Vec<_>>());
}
