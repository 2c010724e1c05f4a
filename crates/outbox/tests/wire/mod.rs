//! What can happen on the wire to a server: a process that dies before any request, or before the reply
//! to any, which is where a lost commit reply is; connections that are lost there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox::testing::TestOutbox;
use outbox::{MessageResult, Outbox, OutboxError};
use testbed::{After, Fault, Wire};

use crate::conformance::boundaries::{
    MAX_PLACES, Mode, collector, inspect, kit, run, set, take_over,
};
use crate::conformance::outcomes::Ledger;
use crate::conformance::stage::{ONE, PATIENCE, quick};
use crate::conformance::{Collector, Dialect, Stage};

/// Makes a test of every test here.
macro_rules! suite {
    ($database:ty, $server:expr) => {
        $crate::wire::suite!(@tests $database, $server, [
            a_leased_process_may_die_before_any_request,
            a_leased_process_may_die_before_any_reply,
            a_transactional_process_may_die_before_any_request,
            a_transactional_process_may_die_before_any_reply,
            a_connection_may_be_lost_before_any_reply,
            a_take_over_is_charged_once_however_often_it_fails,
            a_take_over_is_charged_once_however_often_its_commit_is_lost,
            a_connection_that_is_lost_around_a_handler_is_nobodys_failure,
        ]);
    };
    (@tests $database:ty, $server:expr, [$($test:ident),* $(,)?]) => {
        mod on_the_wire {
            $(
                $crate::conformance::suite!(@test $database, $server, $test,
                    [$crate::wire::$test]);
            )*
        }
    };
}
pub(crate) use suite;

/// Runs until one comes to its end, each dying one request later than the one before.
async fn die_at_every_request<DB: Dialect>(stage: &Stage<DB>, mode: Mode, fault: Fault) {
    let collector = collector();
    for n in 1..=MAX_PLACES {
        let wire = Wire::to(&stage.url).await;
        // What died was in the middle of something: its connections are not used again.
        let pool = DB::connect(wire.url(), 2).await;
        let mut kit = kit(pool, mode, &collector).await.unwrap();
        wire.fail_at(n, fault, After::Silent);
        let name = format!("{mode:?}-{fault:?}-{n}");
        let ended = tokio::select! {
            biased;
            () = wire.wait_tripped() => false,
            ended = run(&mut kit, &name) => {
                ended.unwrap();
                true
            }
        };
        drop(kit);
        drop(wire);
        take_over(stage, mode, &collector).await;
        inspect(stage, mode, &collector.texts()).await;
        if ended {
            assert!(n > 15, "there are more places to die at than {n}");
            return;
        }
    }
    panic!("a run has more than {MAX_PLACES} requests");
}

pub(crate) async fn a_leased_process_may_die_before_any_request<DB: Dialect>(stage: &Stage<DB>) {
    set(stage, Mode::Leased).await;
    die_at_every_request(stage, Mode::Leased, Fault::BeforeRequest).await;
}

pub(crate) async fn a_leased_process_may_die_before_any_reply<DB: Dialect>(stage: &Stage<DB>) {
    set(stage, Mode::Leased).await;
    die_at_every_request(stage, Mode::Leased, Fault::LostReply).await;
}

pub(crate) async fn a_transactional_process_may_die_before_any_request<DB: Dialect>(
    stage: &Stage<DB>,
) {
    set(stage, Mode::Transactional).await;
    die_at_every_request(stage, Mode::Transactional, Fault::BeforeRequest).await;
}

pub(crate) async fn a_transactional_process_may_die_before_any_reply<DB: Dialect>(
    stage: &Stage<DB>,
) {
    set(stage, Mode::Transactional).await;
    die_at_every_request(stage, Mode::Transactional, Fault::LostReply).await;
}

/// The connections of a process whose connections are lost.
const POOL: u32 = 2;

async fn recover<DB: Dialect>(kit: &mut TestOutbox<DB>) -> Result<(), OutboxError> {
    kit.advance(Duration::from_secs(10)).await?;
    // The server may need a moment to notice that connections are gone and undo what they had begun.
    let drained = tokio::time::timeout(PATIENCE, async {
        while !kit.enqueued("orders").await?.is_empty() {
            kit.drain().await?;
        }
        // The pool hands its connections out in turn: none that was lost may be left for the test.
        for _ in 0..POOL {
            kit.enqueued("orders").await?;
        }
        Ok(())
    });
    drained.await.unwrap_or(Ok(()))
}

/// Not a crash: every connection is lost at that place, and the process goes on.
pub(crate) async fn a_connection_may_be_lost_before_any_reply<DB: Dialect>(stage: &Stage<DB>) {
    set(stage, Mode::Transactional).await;
    for mode in [Mode::Transactional, Mode::Leased] {
        stage.run("DELETE FROM orders").await;
        stage.run("DELETE FROM effects").await;
        stage.run("DELETE FROM outbox_dead_letters").await;
        let collector = collector();
        let wire = Wire::to(&stage.url).await;
        let mut ended = false;
        for n in 1..=MAX_PLACES {
            let pool = DB::connect(wire.url(), POOL).await;
            let mut kit = kit(pool, mode, &collector).await.unwrap();
            wire.fail_at(n, Fault::LostReply, After::Cut);
            let name = format!("{mode:?}-cut-{n}");
            let _ = run(&mut kit, &name).await;
            // How many requests a run needs differs by a few: the trap is not for what comes after it.
            wire.disarm();
            ended = !wire.tripped();
            // Whatever went wrong, the next drain puts it right, without any lease running out: this is
            // longer than the longest backoff and shorter than a lease.
            let mut tries = 0;
            while let Err(error) = recover(&mut kit).await {
                tries += 1;
                assert!(tries < 5, "it does not come back: {error}");
            }
            kit.assert_nothing_enqueued("orders").await;
            inspect(stage, mode, &collector.texts()).await;
            kit.stop().await.unwrap();
            if ended {
                break;
            }
        }
        assert!(ended, "a run has more than {MAX_PLACES} requests");
    }
}

/// One that takes over from a process that died with a lease and a message under it.
async fn heir<DB: Dialect>(
    stage: &Stage<DB>,
    mode: Mode,
    wire: &Wire,
    collector: &Collector,
) -> TestOutbox<DB> {
    set(stage, mode).await;
    let failing = Collector::answering(|_| MessageResult::Retry);
    let pool = DB::connect(&stage.url, 2).await;
    let mut dead = kit(pool, mode, &failing).await.unwrap();
    stage.enqueue(dead.outbox(), 0, &["x"]).await;
    assert_eq!(dead.drain().await.unwrap().retried, 1);
    drop(dead);
    let pool = DB::connect(wire.url(), 2).await;
    let heir = kit(pool, mode, collector).await.unwrap();
    heir.advance(Duration::from_secs(60)).await.unwrap();
    heir
}

pub(crate) async fn a_take_over_is_charged_once_however_often_it_fails<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let (collector, wire) = (Collector::new(), Wire::to(&stage.url).await);
    let mut heir = heir(stage, Mode::Leased, &wire, &collector).await;
    for n in 1..=MAX_PLACES {
        wire.fail_at(n, Fault::BeforeRequest, After::Cut);
        let _ = heir.drain().await;
        if !collector.seen().is_empty() {
            break;
        }
    }
    // One attempt failed, the one that never came back is charged, and this is the third.
    assert_eq!(collector.seen()[0].attempts, 1);
    let charged = "SELECT COUNT(*) FROM outbox_processors WHERE attempts <= 2";
    assert_eq!(stage.number(charged).await, 1);
}

pub(crate) async fn a_take_over_is_charged_once_however_often_its_commit_is_lost<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let wire = Arc::new(Wire::to(&stage.url).await);
    let (cut, lost) = (Arc::clone(&wire), AtomicU32::new(0));
    let collector = Collector::answering(move |_| {
        if lost.fetch_add(1, Ordering::Relaxed) < 3 {
            cut.fail_on(b"COMMIT", Fault::BeforeRequest, After::Cut);
        }
        MessageResult::Ok
    });
    let mut heir = heir(stage, Mode::Transactional, &wire, &collector).await;
    // The server may need a moment to notice that a connection is gone and undo what it had begun.
    let settled = tokio::time::timeout(PATIENCE, async {
        while stage.number("SELECT COUNT(*) FROM effects").await == 0 {
            let _ = heir.drain().await;
        }
    });
    settled.await.expect("it is settled in the end");
    let seen = collector.seen();
    let attempts: Vec<_> = seen.iter().map(|message| message.attempts).collect();
    assert_eq!(attempts, [1; 4], "no handler failed since");
    assert_eq!(stage.buried(heir.outbox()).await, []);
}

pub(crate) async fn a_connection_that_is_lost_around_a_handler_is_nobodys_failure<DB: Dialect>(
    stage: &Stage<DB>,
) {
    set(stage, Mode::Transactional).await;
    let wire = Arc::new(Wire::to(&stage.url).await);
    let (cut, lost) = (Arc::clone(&wire), AtomicU32::new(0));
    let collector = Collector::answering(move |_| {
        if lost.fetch_add(1, Ordering::Relaxed) < 3 {
            cut.fail_on(b"RELEASE", Fault::BeforeRequest, After::Cut);
        }
        MessageResult::Ok
    });
    let queue = quick(Outbox::builder(DB::connect(wire.url(), 2).await)).queue("orders", ONE);
    let queue = queue.transactional(Ledger(collector.clone()));
    let mut kit = queue.max_attempts(1).step_by_step().await.unwrap();
    stage.enqueue(kit.outbox(), 0, &["x"]).await;
    // Before the handler has run at all.
    wire.fail_on(b"SAVEPOINT", Fault::BeforeRequest, After::Cut);
    let settled = tokio::time::timeout(PATIENCE, async {
        while stage
            .number("SELECT processed_seq FROM outbox_processors")
            .await
            == 0
        {
            let _ = kit.drain().await;
        }
    });
    settled.await.expect("it is settled in the end");
    let buried = "SELECT COUNT(*) FROM outbox_dead_letters";
    assert_eq!(stage.number(buried).await, 0);
    let seen = collector.seen();
    let attempts: Vec<_> = seen.iter().map(|message| message.attempts).collect();
    assert_eq!(attempts, [0; 4], "no handler failed");
}
