//! The test kit for users: the pipeline step by step, and time as the test says. And what the movable
//! clock is good for besides: clocks that are stepped under a running outbox.

use std::time::Duration;

use outbox::testing::{Failure, fail_on, step_clock};
use outbox::{DeadLetterStatus, EnqueueMessage, LeaseConfig, MessageResult, Outbox, WorkerTuning};

use super::outcomes::Ledger;
use super::stage::{ONE, quick, text_of};
use super::{Collector, Dialect, Stage};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn a_drain_delivers_what_is_due_and_nothing_else<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("stubborn", 0) => MessageResult::Retry,
        ("poison", _) => MessageResult::Reject("poison".into()),
        _ => MessageResult::Ok,
    });
    let queue = stage
        .outbox()
        .queue("orders", ONE)
        .leased(collector.clone());
    let mut kit = queue.step_by_step().await.unwrap();
    kit.assert_nothing_enqueued("orders").await;
    assert_eq!(kit.drain().await.unwrap(), Default::default());

    let producer = kit.outbox().clone();
    stage
        .enqueue(&producer, 0, &["a", "poison", "stubborn", "b"])
        .await;
    let keyed = EnqueueMessage::keyed("ada", "c", "text/plain").header("colour", "blue");
    let enqueue = async |connection: &mut DB::Connection| {
        producer.enqueue(connection, "orders", keyed.clone()).await
    };
    producer.transaction(enqueue).await.unwrap();
    let found = kit
        .assert_enqueued("orders", |message| message.key.as_deref() == Some("ada"))
        .await;
    assert_eq!(
        (text_of(&found), &*found.headers["colour"]),
        ("c".to_owned(), "blue")
    );
    assert_eq!(kit.enqueued("orders").await.unwrap().len(), 5);
    assert!(collector.seen().is_empty(), "nothing runs by itself");

    let drained = kit.drain().await.unwrap();
    assert_eq!((drained.sequenced, drained.settled), (5, 2));
    assert_eq!((drained.retried, drained.dead_lettered), (1, 1));
    let left = kit.enqueued("orders").await.unwrap();
    assert_eq!(
        left.iter().map(text_of).collect::<Vec<_>>(),
        ["stubborn", "b", "c"]
    );
    // It backs off: not due, however often one asks.
    assert_eq!(kit.drain().await.unwrap(), Default::default());
    kit.advance(HOUR).await.unwrap();
    assert_eq!(kit.drain().await.unwrap().settled, 3);
    kit.assert_nothing_enqueued("orders").await;
    assert_eq!(
        collector.texts(),
        ["a", "poison", "stubborn", "stubborn", "b", "c"]
    );
    let rows = "SELECT COUNT(*) FROM outbox_messages";
    assert_eq!(stage.number(rows).await, 0, "a drain sweeps as well");
}

pub(crate) async fn backoffs_double_up_to_the_last_attempt<DB: Dialect>(stage: &Stage<DB>) {
    let tuning = WorkerTuning::processor().retry_base(Duration::from_secs(1));
    let stubborn = Collector::answering(|_| MessageResult::Retry);
    let builder = Outbox::builder(stage.pool.clone()).auto_migrate();
    let builder = builder.processor_tuning(tuning).queue("orders", ONE);
    let queue = builder.leased(stubborn).max_attempts(5);
    let mut kit = queue.step_by_step().await.unwrap();
    stage.enqueue(&kit.outbox().clone(), 0, &["a"]).await;
    assert_eq!(kit.drain().await.unwrap().retried, 1);
    let tick = Duration::from_millis(100);
    for (attempt, seconds) in [(2, 1), (3, 2), (4, 4), (5, 8)] {
        kit.advance(Duration::from_secs(seconds) - tick)
            .await
            .unwrap();
        assert_eq!(kit.drain().await.unwrap(), Default::default(), "{attempt}");
        kit.advance(tick).await.unwrap();
        let drained = kit.drain().await.unwrap();
        assert_eq!(
            (drained.retried, drained.dead_lettered),
            (1, u64::from(attempt == 5)),
            "{attempt}"
        );
    }
}

pub(crate) async fn a_test_sees_what_its_own_transaction_has_enqueued<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let queue = stage.outbox().queue("orders", ONE).leased(Collector::new());
    let kit = queue.step_by_step().await.unwrap();
    let mut transaction = stage.pool.begin().await.unwrap();
    let message = EnqueueMessage::to(0, "mine", "text/plain");
    let id = kit.outbox().enqueue(&mut transaction, "orders", message);
    let id = id.await.unwrap();
    let seen = kit.enqueued_in(&mut transaction, "orders").await.unwrap();
    assert_eq!(seen.iter().map(|seen| seen.id).collect::<Vec<_>>(), [id]);
    transaction.rollback().await.unwrap();
    kit.assert_nothing_enqueued("orders").await;
}

pub(crate) async fn a_handler_fails_on_command<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    for failure in [Failure::Retry, Failure::Panic, Failure::Reject] {
        let ledger = fail_on(2, failure.clone(), Ledger(collector.clone()));
        let queue = stage.outbox().queue("orders", ONE).transactional(ledger);
        let mut kit = queue.step_by_step().await.unwrap();
        let before = stage.number("SELECT COUNT(*) FROM effects").await;
        stage.enqueue(kit.outbox(), 0, &["a", "b", "c"]).await;
        let first = kit.drain().await.unwrap();
        kit.advance(HOUR).await.unwrap();
        let second = kit.drain().await.unwrap();
        assert_eq!(first.settled + second.settled, 3, "{failure:?}");
        let rejected = u64::from(failure == Failure::Reject);
        assert_eq!(first.dead_lettered + second.dead_lettered, rejected);
        let effects = stage.number("SELECT COUNT(*) FROM effects").await - before;
        assert_eq!(
            effects,
            3 - rejected as i64,
            "{failure:?}: each effect once"
        );
        kit.stop().await.unwrap();
    }
}

pub(crate) async fn a_lease_runs_out_when_the_clock_says_so<DB: Dialect>(stage: &Stage<DB>) {
    let (first, second) = (Collector::new(), Collector::new());
    let stuck = fail_on(2, Failure::Retry, first.clone());
    let queue = stage.outbox().queue("orders", ONE).leased(stuck);
    let mut one = queue.step_by_step().await.unwrap();
    stage.enqueue(one.outbox(), 0, &["a", "b"]).await;
    assert_eq!(one.drain().await.unwrap().settled, 1);
    let queue = stage.outbox().queue("orders", ONE).leased(second.clone());
    let mut two = queue.step_by_step().await.unwrap();
    assert_eq!(two.drain().await.unwrap().settled, 0, "it is another's");
    two.advance(Duration::from_secs(31)).await.unwrap();
    assert_eq!(two.drain().await.unwrap().settled, 1);
    let taken = second.seen().remove(0);
    // The first attempt was counted when it failed, the second when the lease was taken over.
    assert_eq!(
        (text_of(&taken), taken.attempts, taken.epoch),
        ("b".to_owned(), 1, 2)
    );
    one.advance(HOUR).await.unwrap();
    assert_eq!(one.drain().await.unwrap().settled, 0, "it lost its lease");
    assert_eq!(first.seen().len(), 2);
}

pub(crate) async fn claims_on_dead_letters_run_out_when_the_clock_says_so<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let reject = Collector::answering(|_| MessageResult::Reject("no".into()));
    let queue = stage.outbox().queue("orders", ONE).leased(reject);
    let mut kit = queue.step_by_step().await.unwrap();
    stage.enqueue(kit.outbox(), 0, &["a"]).await;
    assert_eq!(kit.drain().await.unwrap().dead_lettered, 1);
    let outbox = kit.outbox();
    let all = outbox::DeadLetterFilter::new();
    let minute = Duration::from_secs(60);
    let claimed = outbox.dead_letter_replay(&all, minute).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert!(
        outbox
            .dead_letter_replay(&all, minute)
            .await
            .unwrap()
            .is_empty()
    );
    kit.advance(minute).await.unwrap();
    let again = outbox.dead_letter_replay(&all, minute).await.unwrap();
    assert_eq!(again.len(), 1, "the first claim ran out");
    assert_eq!(outbox.dead_letter_resolve(&claimed).await.unwrap(), 0);
    assert_eq!(outbox.dead_letter_resolve(&again).await.unwrap(), 1);
    let resolved = outbox.dead_letter_list(&all).await.unwrap().remove(0);
    assert_eq!(resolved.status, DeadLetterStatus::Resolved);
}

/// Short, for the tests wait for it to run out.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(900),
    headroom: Duration::from_millis(200),
};

pub(crate) async fn a_clock_that_jumps_back_strands_nobody<DB: Dialect>(stage: &Stage<DB>) {
    // The holder dies with a lease that, after the step, runs for another day by the database's clock.
    let queue = stage.outbox().queue("orders", ONE).leased(Collector::new());
    let mut dead = queue.lease(LEASE).step_by_step().await.unwrap();
    stage.enqueue(dead.outbox(), 0, &["before"]).await;
    dead.drain().await.unwrap();
    stage.enqueue(dead.outbox(), 0, &["stranded"]).await;
    step_clock(dead.outbox(), -24 * 3_600_000).await.unwrap();
    let heir = Collector::new();
    let builder = quick(Outbox::builder(stage.another_pool(6).await)).movable_clock();
    let builder = builder.queue("orders", ONE).leased(heir.clone());
    let handle = builder.lease(LEASE).start().await.unwrap();
    let delivered = heir.wait_for(1).await;
    assert_eq!(text_of(&delivered[0]), "stranded");
    handle.stop().await;
}

pub(crate) async fn a_clock_that_jumps_ahead_doubles_no_effect<DB: Dialect>(stage: &Stage<DB>) {
    // Every lease runs out at once, time and again, while two processes work: the epoch decides.
    let (first, second) = (Collector::new(), Collector::new());
    let builder = stage.outbox().movable_clock().queue("orders", ONE);
    let one = builder.transactional(Ledger(first.clone())).lease(LEASE);
    let one = one.start().await.unwrap();
    let builder = quick(Outbox::builder(stage.another_pool(6).await)).movable_clock();
    let builder = builder.queue("orders", ONE);
    let two = builder.transactional(Ledger(second.clone())).lease(LEASE);
    let two = two.start().await.unwrap();
    for round in 0..30 {
        let texts: Vec<String> = (0..5).map(|place| format!("{round}-{place}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        stage.enqueue(one.outbox(), 0, &texts).await;
        let hours = if round % 3 == 2 { -2 } else { 1 };
        step_clock(one.outbox(), hours * 3_600_000).await.unwrap();
    }
    stage
        .until("SELECT processed_seq FROM outbox_processors", 150)
        .await;
    one.stop().await;
    two.stop().await;
    let effects = "SELECT COUNT(*) FROM effects";
    assert_eq!(stage.number(effects).await, 150);
    let distinct = "SELECT COUNT(DISTINCT seq) FROM effects";
    assert_eq!(stage.number(distinct).await, 150);
}
