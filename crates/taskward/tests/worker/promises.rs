//! Waiting, waking, pacing, backing off and stopping, each promise in a test of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::scripted::Step::{Fail, Panic, Return, Work};
use crate::scripted::{Journal, Scripted, run_for};
use taskward::{
    BackoffConfig, Bulkhead, BulkheadConfig, ConcurrencyLimit, Directive, PacingConfig, TaskSet,
    WorkerAction, WorkerBuilder, poker,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_hours(1);
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// A notifier that already holds a permit: the worker's first execution is due at once.
fn knocked() -> Arc<Notify> {
    let notify = Arc::new(Notify::new());
    notify.notify_one();
    notify
}

fn doubling_from_one_second(limit: ConcurrencyLimit) -> Bulkhead {
    let backoff = BackoffConfig {
        initial: SECOND,
        max: 60 * SECOND,
        multiplier: 2.0,
        jitter: 0.0,
    };
    Bulkhead::new(
        "test",
        BulkheadConfig {
            semaphore: limit,
            backoff,
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_long_interval_worker_goes_on_at_once_when_there_is_more_to_do() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let (every_four_hours, _poker) = poker(4 * HOUR, cancel.clone());
    let worker = WorkerBuilder::new("batch", cancel.clone())
        .notifier(every_four_hours)
        .build(Scripted::new(
            &journal,
            [
                Work(2 * HOUR, Directive::idle()),
                Work(5 * HOUR, Directive::proceed()),
                Work(HOUR, Directive::idle()),
            ],
        ));
    run_for(worker, &cancel, 14 * HOUR).await;
    let pace = PacingConfig::default().active_interval;
    assert_eq!(journal.starts(), [4 * HOUR, 8 * HOUR, 13 * HOUR + pace]);
}

#[tokio::test(start_paused = true)]
async fn an_event_beats_the_timer() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let (hourly, _poker) = poker(HOUR, cancel.clone());
    let event = Arc::new(Notify::new());
    let worker = WorkerBuilder::new("events", cancel.clone())
        .notifier(hourly)
        .notifier(event.clone())
        .build(Scripted::new(&journal, []));
    let run = run_for(worker, &cancel, HOUR + SECOND);
    let announce = async {
        tokio::time::sleep(5 * MILLI).await;
        event.notify_one();
    };
    tokio::join!(run, announce);
    assert_eq!(journal.starts(), [5 * MILLI, HOUR]);
}

#[tokio::test(start_paused = true)]
async fn errors_back_off_one_two_four_seconds_and_a_success_resets() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    // Somebody knocks all the time: only the backoff keeps the worker from executing.
    let (restless, _poker) = poker(MILLI, cancel.clone());
    let script = [
        Fail("1"),
        Fail("2"),
        Fail("3"),
        Return(Directive::idle()),
        Fail("again"),
    ];
    let worker = WorkerBuilder::new("flaky", cancel.clone())
        .notifier(restless)
        .bulkhead(doubling_from_one_second(ConcurrencyLimit::Unlimited))
        .build(Scripted::new(&journal, script));
    run_for(worker, &cancel, 10 * SECOND).await;
    let gaps = journal.gaps();
    assert_eq!(gaps[..3], [SECOND, 2 * SECOND, 4 * SECOND]);
    assert!(
        gaps[3] <= MILLI,
        "a success is followed by a plain idle wait, not by {:?}",
        gaps[3]
    );
    assert_eq!(gaps[4], SECOND);
}

#[tokio::test(start_paused = true)]
async fn after_the_backoff_a_failed_worker_waits_as_if_idle() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let worker = WorkerBuilder::new("failed", cancel.clone())
        .notifier(knocked())
        .bulkhead(doubling_from_one_second(ConcurrencyLimit::Unlimited))
        .build(Scripted::new(&journal, [Fail("once")]));
    run_for(worker, &cancel, HOUR).await;
    assert_eq!(journal.executions(), 1);
}

#[tokio::test(start_paused = true)]
async fn any_of_several_notifiers_wakes() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let notifiers: Vec<_> = (0..5).map(|_| Arc::new(Notify::new())).collect();
    let builder = WorkerBuilder::new("ears", cancel.clone());
    let worker = notifiers
        .iter()
        .fold(builder, |builder, notify| builder.notifier(notify.clone()))
        .build(Scripted::new(&journal, []));
    let knock = async {
        for notify in &notifiers {
            tokio::time::sleep(SECOND).await;
            notify.notify_one();
        }
    };
    tokio::join!(run_for(worker, &cancel, HOUR), knock);
    assert_eq!(journal.starts(), [1, 2, 3, 4, 5].map(Duration::from_secs));
}

#[tokio::test(start_paused = true)]
async fn notifiers_that_fire_together_are_answered_by_one_execution() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let worker = WorkerBuilder::new("ears", cancel.clone())
        .notifier(knocked())
        .notifier(knocked())
        .build(Scripted::new(&journal, []));
    run_for(worker, &cancel, HOUR).await;
    assert_eq!(journal.executions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_notification_during_an_execution_leads_to_another() {
    for knock in [Notify::notify_one as fn(&Notify), Notify::notify_waiters] {
        let cancel = CancellationToken::new();
        let journal = Journal::new();
        let event = Arc::new(Notify::new());
        let worker = WorkerBuilder::new("busy", cancel.clone())
            .notifier(knocked())
            .notifier(event.clone())
            .build(Scripted::new(
                &journal,
                [Work(10 * SECOND, Directive::idle())],
            ));
        let announce = async {
            tokio::time::sleep(5 * SECOND).await;
            knock(&event);
        };
        tokio::join!(run_for(worker, &cancel, HOUR), announce);
        assert_eq!(journal.starts(), [Duration::ZERO, 10 * SECOND]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_notification_during_the_backoff_waits_for_its_end() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let event = knocked();
    let worker = WorkerBuilder::new("resting", cancel.clone())
        .notifier(event.clone())
        .bulkhead(doubling_from_one_second(ConcurrencyLimit::Unlimited))
        .build(Scripted::new(&journal, [Fail("once")]));
    let announce = async {
        tokio::time::sleep(SECOND / 2).await;
        event.notify_waiters();
    };
    tokio::join!(run_for(worker, &cancel, HOUR), announce);
    assert_eq!(journal.starts(), [Duration::ZERO, SECOND]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_leaves_the_knock_to_a_sibling_that_is_free() {
    let cancel = CancellationToken::new();
    let (busy, free) = (Journal::new(), Journal::new());
    let shared = Arc::new(Notify::new());
    let build = |name: &str, notify: Arc<Notify>, action| {
        WorkerBuilder::new(name, cancel.clone())
            .notifier(notify)
            .notifier(shared.clone())
            .build(action)
    };
    let occupied = Scripted::new(&busy, [Work(HOUR, Directive::idle())]);
    let busy_worker = build("busy", knocked(), occupied);
    let free_worker = build("free", Arc::new(Notify::new()), Scripted::new(&free, []));
    let announce = async {
        tokio::time::sleep(SECOND).await;
        shared.notify_one();
    };
    tokio::join!(
        busy_worker.run(),
        run_for(free_worker, &cancel, 2 * HOUR),
        announce
    );
    assert_eq!(busy.starts(), [Duration::ZERO]);
    assert_eq!(free.starts(), [SECOND]);
}

/// Counts how many of its kind execute at once.
struct Crowd {
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    executions: Arc<AtomicUsize>,
}

impl WorkerAction for Crowd {
    type Payload = ();
    type Error = String;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, String> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        tokio::time::sleep(SECOND).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.executions.fetch_add(1, Ordering::SeqCst);
        Ok(Directive::idle())
    }
}

#[tokio::test(start_paused = true)]
async fn four_workers_share_two_permits() {
    let cancel = CancellationToken::new();
    let permits = Arc::new(Semaphore::new(2));
    let [inside, most, executions] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut workers = TaskSet::new(cancel.clone());
    for name in ["a", "b", "c", "d"] {
        let crowd = Crowd {
            inside: inside.clone(),
            most: most.clone(),
            executions: executions.clone(),
        };
        let worker = WorkerBuilder::new(name, cancel.clone())
            .notifier(knocked())
            .bulkhead(doubling_from_one_second(ConcurrencyLimit::Fixed(
                permits.clone(),
            )))
            .build(crowd);
        workers.spawn(name, worker.run());
    }
    tokio::time::sleep(SECOND + MILLI).await;
    assert_eq!(
        executions.load(Ordering::SeqCst),
        2,
        "two run in the first second"
    );
    tokio::time::sleep(SECOND).await;
    assert_eq!(
        executions.load(Ordering::SeqCst),
        4,
        "and the other two in the next"
    );
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert_eq!(
        permits.available_permits(),
        2,
        "an idle worker holds no permit"
    );
    assert!(workers.shutdown().await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_self_scheduling_worker_needs_no_further_notifier() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let worker = WorkerBuilder::new("vacuum", cancel.clone())
        .notifier(knocked())
        .build(Scripted::new(
            &journal,
            vec![Return(Directive::sleep(HOUR)); 24],
        ));
    run_for(worker, &cancel, 100 * HOUR).await;
    assert_eq!(journal.executions(), 25);
    assert!(journal.gaps().iter().all(|gap| *gap == HOUR));
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_worker_is_woken_early() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let event = knocked();
    let worker = WorkerBuilder::new("sleeper", cancel.clone())
        .notifier(event.clone())
        .build(Scripted::new(
            &journal,
            [Return(Directive::sleep(Duration::MAX))],
        ));
    let announce = async {
        tokio::time::sleep(SECOND).await;
        event.notify_one();
    };
    tokio::join!(run_for(worker, &cancel, HOUR), announce);
    assert_eq!(journal.starts(), [Duration::ZERO, SECOND]);
}

#[tokio::test(start_paused = true)]
async fn the_loop_begins_idle() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let worker = WorkerBuilder::new("idle", cancel.clone())
        .notifier(Arc::new(Notify::new()))
        .build(Scripted::new(&journal, []));
    run_for(worker, &cancel, 1000 * HOUR).await;
    assert_eq!(journal.executions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_speeds_up_and_starts_slowly_after_a_wait() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let event = knocked();
    let script = [
        Directive::proceed(),
        Directive::proceed(),
        Directive::proceed(),
    ]
    .into_iter()
    .chain([Directive::idle(), Directive::proceed()])
    .map(Return);
    let worker = WorkerBuilder::new("ramp", cancel.clone())
        .notifier(event.clone())
        .pacing(PacingConfig {
            min_interval: 10 * MILLI,
            active_interval: 100 * MILLI,
            ramp_step: 70 * MILLI,
        })
        .build(Scripted::new(&journal, script));
    let announce = async {
        tokio::time::sleep(SECOND).await;
        event.notify_one();
    };
    tokio::join!(run_for(worker, &cancel, HOUR), announce);
    assert_eq!(
        journal.starts(),
        [0, 100, 130, 140, 1000, 1100].map(Duration::from_millis)
    );
}

#[tokio::test(start_paused = true)]
async fn a_zero_pace_takes_no_time_and_starves_nobody() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let zero = PacingConfig {
        min_interval: Duration::ZERO,
        active_interval: Duration::ZERO,
        ramp_step: Duration::ZERO,
    };
    let worker = WorkerBuilder::new("flat out", cancel.clone())
        .notifier(knocked())
        .pacing(zero)
        .build(Scripted::new(
            &journal,
            vec![Return(Directive::proceed()); 10_000],
        ));
    let neighbour = tokio::spawn({
        let journal = journal.clone();
        async move { journal.executions() }
    });
    let ((), seen) = tokio::join!(run_for(worker, &cancel, HOUR), neighbour);
    assert!(
        seen.unwrap() < 10_000,
        "the neighbour had to wait for the whole burst"
    );
    assert_eq!(journal.executions(), 10_001);
    assert_eq!(journal.starts().last(), Some(&Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_failures_in_a_row_do_not_end_a_worker() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let (restless, _poker) = poker(60 * SECOND, cancel.clone());
    let failures = (0..10_000).map(|n| {
        if n % 2 == 0 {
            Fail("again")
        } else {
            Panic("again")
        }
    });
    let worker = WorkerBuilder::new("hopeless", cancel.clone())
        .notifier(restless)
        .bulkhead(doubling_from_one_second(ConcurrencyLimit::Unlimited))
        .build(Scripted::new(&journal, failures));
    run_for(worker, &cancel, 10_100 * 60 * SECOND).await;
    assert!(
        journal.executions() > 10_000,
        "{} executions",
        journal.executions()
    );
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_every_wait_but_never_an_execution() {
    let closed = Arc::new(Semaphore::new(1));
    closed.close();
    let fixed = |permits| ConcurrencyLimit::Fixed(Arc::new(Semaphore::new(permits)));
    for (waiting_for, first, limit, executions) in [
        ("a notifier", Return(Directive::idle()), fixed(1), 1),
        ("time", Return(Directive::sleep(100 * HOUR)), fixed(1), 1),
        ("the backoff", Fail("no"), fixed(1), 1),
        ("a permit", Return(Directive::idle()), fixed(0), 0),
        (
            "a permit that never comes",
            Return(Directive::idle()),
            ConcurrencyLimit::Fixed(closed),
            0,
        ),
    ] {
        let cancel = CancellationToken::new();
        let journal = Journal::new();
        let worker = WorkerBuilder::new("cancelled", cancel.clone())
            .notifier(knocked())
            .bulkhead(doubling_from_one_second(limit))
            .build(Scripted::new(&journal, [first]));
        let started = tokio::time::Instant::now();
        run_for(worker, &cancel, SECOND / 2).await;
        assert_eq!(
            started.elapsed(),
            SECOND / 2,
            "while waiting for {waiting_for}"
        );
        assert_eq!(
            journal.executions(),
            executions,
            "while waiting for {waiting_for}"
        );
    }

    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let worker = WorkerBuilder::new("busy", cancel.clone())
        .notifier(knocked())
        .build(Scripted::new(&journal, [Work(HOUR, Directive::proceed())]));
    let started = tokio::time::Instant::now();
    run_for(worker, &cancel, SECOND).await;
    assert_eq!(started.elapsed(), HOUR, "the execution in hand is finished");
    assert_eq!(journal.executions(), 1, "and no other begins");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_worker_executes_nothing() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let journal = Journal::new();
    let action = Scripted::new(&journal, []);
    WorkerBuilder::new("late", cancel)
        .notifier(knocked())
        .build(action)
        .run()
        .await;
    assert_eq!(journal.executions(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_poke_comes_after_one_interval_and_the_last_before_cancellation() {
    let cancel = CancellationToken::new();
    let started = tokio::time::Instant::now();
    let (notify, handle) = poker(HOUR, cancel.clone());
    for pokes in 1..=3 {
        notify.notified().await;
        assert_eq!(started.elapsed(), pokes * HOUR);
    }
    cancel.cancel();
    handle.await.expect("a poker ends by itself");
    let silence = tokio::time::timeout(10 * HOUR, notify.notified()).await;
    assert!(silence.is_err(), "poked after cancellation");
}

#[tokio::test(start_paused = true)]
async fn a_poker_without_an_interval_is_no_busy_loop() {
    let cancel = CancellationToken::new();
    let started = tokio::time::Instant::now();
    let (notify, _handle) = poker(Duration::ZERO, cancel.clone());
    notify.notified().await;
    assert_eq!(started.elapsed(), taskward::poker::MIN_INTERVAL);
}
