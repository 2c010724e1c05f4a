//! No wake-up is ever lost, whichever way the threads interleave.
//!
//! `RUSTFLAGS="--cfg shuttle"` replaces tokio's primitives with ones that hand every step to a
//! randomised scheduler. Each test runs thousands of schedules; a wake-up that gets lost in one of
//! them leaves the test waiting for ever, which shuttle reports as a deadlock together with the
//! schedule. Time does not exist here: a sleep never ends by itself, so only wake-ups can help.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shuttle_tokio::sync::Notify;
use shuttle_tokio::task::{JoinHandle, spawn, yield_now};
use shuttle_tokio_util::sync::CancellationToken;
use taskward::{
    BackoffConfig, Bulkhead, BulkheadConfig, ConcurrencyLimit, Directive, WorkerAction,
    WorkerBuilder, WorkerListener,
};

/// Schedules per test: a few thousand in the test command, more at night.
fn schedules() -> usize {
    std::env::var("OUTBOX_SHUTTLE_ITERATIONS").map_or(3_000, |n| {
        n.parse().expect("OUTBOX_SHUTTLE_ITERATIONS is a number")
    })
}

/// Runs a test under many random schedules, then under many that bring out rare orders.
fn explore(test: fn()) {
    shuttle::check_random(test, schedules());
    shuttle::check_pct(test, schedules(), 3);
}

/// Work that producers announce and workers do.
#[derive(Default)]
struct Ledger {
    announced: AtomicUsize,
    done: AtomicUsize,
    progress: Notify,
}

impl Ledger {
    /// Waits until all of `expected` pieces are done.
    async fn finished(&self, expected: usize) {
        while self.done.load(Ordering::SeqCst) < expected {
            self.progress.notified().await;
        }
    }
}

/// Sees what was announced before it began, takes its time, and counts that as done. What is
/// announced while it runs needs another execution.
struct Clerk {
    ledger: Arc<Ledger>,
    after: fn() -> Result<Directive, &'static str>,
}

impl WorkerAction for Clerk {
    type Payload = ();
    type Error = &'static str;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, &'static str> {
        let seen = self.ledger.announced.load(Ordering::SeqCst);
        yield_now().await;
        self.ledger.done.fetch_max(seen, Ordering::SeqCst);
        self.ledger.progress.notify_one();
        (self.after)()
    }
}

/// Tells when the worker has begun to listen, for broadcasts are not kept for latecomers.
struct Started(Arc<Notify>);

impl WorkerListener for Started {
    fn on_start(&self) {
        self.0.notify_one();
    }
}

struct Office {
    ledger: Arc<Ledger>,
    cancel: CancellationToken,
    workers: Vec<JoinHandle<()>>,
}

impl Office {
    fn new() -> Self {
        Self {
            ledger: Arc::default(),
            cancel: CancellationToken::new(),
            workers: Vec::new(),
        }
    }

    fn hire(&mut self, notifiers: &[Arc<Notify>], after: fn() -> Result<Directive, &'static str>) {
        self.hire_reporting(notifiers, after, Arc::new(Notify::new()));
    }

    fn hire_reporting(
        &mut self,
        notifiers: &[Arc<Notify>],
        after: fn() -> Result<Directive, &'static str>,
        started: Arc<Notify>,
    ) {
        let no_rest = BackoffConfig {
            initial: Duration::ZERO,
            ..Default::default()
        };
        let bulkhead = BulkheadConfig {
            semaphore: ConcurrencyLimit::Unlimited,
            backoff: no_rest,
        };
        let worker = WorkerBuilder::new("clerk", self.cancel.clone())
            .bulkhead(Bulkhead::new("clerk", bulkhead))
            .listener(Started(started));
        let worker = notifiers
            .iter()
            .fold(worker, |worker, notify| worker.notifier(notify.clone()))
            .build(Clerk {
                ledger: self.ledger.clone(),
                after,
            });
        self.workers.push(spawn(worker.run()));
    }

    /// Announces `pieces` of work, each with a knock.
    fn announce(&self, notify: &Arc<Notify>, pieces: usize, knock: fn(&Notify)) {
        let (ledger, notify) = (self.ledger.clone(), notify.clone());
        spawn(async move {
            for _ in 0..pieces {
                ledger.announced.fetch_add(1, Ordering::SeqCst);
                knock(&notify);
                yield_now().await;
            }
        });
    }

    async fn close(self, expected: usize) {
        self.ledger.finished(expected).await;
        self.cancel.cancel();
        for worker in self.workers {
            worker.await.expect("a worker ends by cancellation");
        }
    }
}

const IDLE: fn() -> Result<Directive, &'static str> = || Ok(Directive::idle());

#[test]
fn a_knock_at_any_moment_leads_to_an_execution() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let notify = Arc::new(Notify::new());
            office.announce(&notify, 3, Notify::notify_one);
            office.hire(&[notify], IDLE);
            office.close(3).await;
        });
    });
}

#[test]
fn several_notifiers_that_race_are_all_answered() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let notifiers = [(); 3].map(|()| Arc::new(Notify::new()));
            office.hire(&notifiers, IDLE);
            for notify in &notifiers {
                office.announce(notify, 2, Notify::notify_one);
            }
            office.close(6).await;
        });
    });
}

#[test]
fn a_broadcast_at_any_moment_leads_to_an_execution() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let notifiers = [(); 2].map(|()| Arc::new(Notify::new()));
            let started = Arc::new(Notify::new());
            office.hire_reporting(&notifiers, IDLE, started.clone());
            started.notified().await;
            office.announce(&notifiers[0], 2, Notify::notify_waiters);
            office.announce(&notifiers[1], 2, Notify::notify_one);
            office.close(4).await;
        });
    });
}

#[test]
fn a_knock_on_a_sleeping_worker_beats_the_clock() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let notify = Arc::new(Notify::new());
            office.hire(std::slice::from_ref(&notify), || {
                Ok(Directive::sleep(Duration::from_secs(3600)))
            });
            office.announce(&notify, 3, Notify::notify_one);
            office.close(3).await;
        });
    });
}

#[test]
fn a_knock_on_a_failing_worker_is_not_lost() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let notify = Arc::new(Notify::new());
            office.hire(std::slice::from_ref(&notify), || Err("as always"));
            office.announce(&notify, 3, Notify::notify_one);
            office.close(3).await;
        });
    });
}

#[test]
fn workers_that_share_a_notifier_leave_nothing_undone() {
    explore(|| {
        shuttle::future::block_on(async {
            let mut office = Office::new();
            let (shared, own) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            office.hire(&[shared.clone(), own.clone()], IDLE);
            office.hire(std::slice::from_ref(&shared), IDLE);
            office.announce(&shared, 3, Notify::notify_one);
            office.announce(&own, 1, Notify::notify_one);
            office.close(4).await;
        });
    });
}
