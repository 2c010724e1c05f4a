//! Whatever panics, the worker or its supervisor survives and reports it.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::scripted::Step::{Fail, Panic, Return};
use crate::scripted::{Journal, Scripted, run_for};
use taskward::{
    Directive, PanicPolicy, TaskOutcome, TaskSet, WorkerAction, WorkerBuilder, WorkerListener,
    poker,
};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// Writes down what it is told.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn note(&self, event: impl Into<String>) {
        self.0.lock().expect("no panic inside").push(event.into());
    }

    fn events(&self) -> Vec<String> {
        self.0.lock().expect("no panic inside").clone()
    }

    fn errors(&self) -> Vec<String> {
        self.events()
            .into_iter()
            .filter(|event| event.starts_with("error"))
            .collect()
    }
}

impl<P: fmt::Debug> WorkerListener<P> for Recorder {
    fn on_start(&self) {
        self.note("start");
    }
    fn on_stop(&self) {
        self.note("stop");
    }
    fn on_execute_start(&self) {
        self.note("execute");
    }
    fn on_complete(&self, _: Duration, directive: &Directive<P>) {
        self.note(format!("complete {directive:?}"));
    }
    fn on_error(&self, _: Duration, error: &str, failures: u32, _: Duration) {
        self.note(format!("error {failures}: {error}"));
    }
    fn on_idle(&self) {
        self.note("idle");
    }
    fn on_sleep(&self, duration: Duration) {
        self.note(format!("sleep {duration:?}"));
    }
}

/// Panics whenever it is told anything.
struct Jumpy;

impl<P> WorkerListener<P> for Jumpy {
    fn on_start(&self) {
        panic!("start")
    }
    fn on_stop(&self) {
        panic!("stop")
    }
    fn on_execute_start(&self) {
        panic!("execute")
    }
    fn on_complete(&self, _: Duration, _: &Directive<P>) {
        panic!("complete")
    }
    fn on_error(&self, _: Duration, _: &str, _: u32, _: Duration) {
        panic!("error")
    }
    fn on_idle(&self) {
        panic!("idle")
    }
    fn on_sleep(&self, _: Duration) {
        panic!("sleep")
    }
}

#[tokio::test(start_paused = true)]
async fn listeners_are_told_everything_in_order_also_behind_one_that_panics() {
    let cancel = CancellationToken::new();
    let journal = Journal::new();
    let recorder = Recorder::default();
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let script = [
        Return(Directive::proceed()),
        Return(Directive::sleep(SECOND / 2)),
        Fail("no"),
    ];
    let worker = WorkerBuilder::new("told", cancel.clone())
        .notifier(every_second)
        .listener(Jumpy)
        .listener(recorder.clone())
        .build(Scripted::new(&journal, script));
    run_for(worker, &cancel, SECOND * 7 / 4).await;
    assert_eq!(
        recorder.events(),
        [
            "start",
            "idle",
            "execute",
            "complete Proceed(())",
            "execute",
            "complete Sleep(500ms, ())",
            "sleep 500ms",
            "execute",
            "error 1: no",
            "idle",
            "stop",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_panicking_worker_recovers_and_its_siblings_never_notice() {
    let cancel = CancellationToken::new();
    let (bad, good) = (Journal::new(), Journal::new());
    let recorder = Recorder::default();
    let mut workers = TaskSet::new(cancel.clone());
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let worker = WorkerBuilder::new("bad", cancel.clone())
        .notifier(every_second)
        .listener(recorder.clone())
        .build(Scripted::new(&bad, [Panic("boom")]));
    workers.spawn("bad", worker.run());
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let worker = WorkerBuilder::new("good", cancel.clone())
        .notifier(every_second)
        .build(Scripted::new(&good, []));
    workers.spawn("good", worker.run());
    tokio::time::sleep(10 * SECOND + SECOND / 2).await;
    assert!(workers.shutdown().await.is_clean());
    assert_eq!((bad.executions(), good.executions()), (10, 10));
    assert_eq!(recorder.errors(), ["error 1: panic: boom"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_that_should_propagate_ends_its_worker_and_is_reported_by_name() {
    let cancel = CancellationToken::new();
    let (bad, good) = (Journal::new(), Journal::new());
    let recorder = Recorder::default();
    let mut workers = TaskSet::new(cancel.clone());
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let worker = WorkerBuilder::new("bad", cancel.clone())
        .notifier(every_second)
        .listener(recorder.clone())
        .on_panic(PanicPolicy::Propagate)
        .build(Scripted::new(&bad, [Panic("boom")]));
    workers.spawn("bad", worker.run());
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let worker = WorkerBuilder::new("good", cancel.clone())
        .notifier(every_second)
        .build(Scripted::new(&good, []));
    workers.spawn("good", worker.run());
    tokio::time::sleep(10 * SECOND + SECOND / 2).await;
    let report = workers.shutdown().await;
    assert_eq!((bad.executions(), good.executions()), (1, 10));
    assert_eq!(
        recorder.events()[2..],
        ["execute", "error 1: panic: boom", "stop"]
    );
    let boom = TaskOutcome::Panicked("panic: boom".to_owned());
    let ends: Vec<_> = report.tasks().collect();
    assert_eq!(ends, [("bad", &boom), ("good", &TaskOutcome::Stopped)]);
    assert_eq!(report.to_string(), "1 of 2 stopped; bad: panic: boom");
}

/// Panics when it is printed, and when it is dropped.
struct Grenade;

impl fmt::Display for Grenade {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("printing the error")
    }
}

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropping")
        }
    }
}

#[derive(Clone, Copy)]
enum In {
    Error,
    Payload,
    Panic,
}

struct Grenadier(Vec<In>);

impl WorkerAction for Grenadier {
    type Payload = Option<Grenade>;
    type Error = Grenade;

    async fn execute(
        &mut self,
        _: &CancellationToken,
    ) -> Result<Directive<Option<Grenade>>, Grenade> {
        match self.0.pop() {
            None => Ok(Directive::Idle(None)),
            Some(In::Error) => Err(Grenade),
            Some(In::Payload) => Ok(Directive::Proceed(Some(Grenade))),
            Some(In::Panic) => std::panic::panic_any(Grenade),
        }
    }
}

/// Counts executions and errors of a payload that cannot be printed.
#[derive(Clone, Default)]
struct Counter(Recorder);

impl WorkerListener<Option<Grenade>> for Counter {
    fn on_execute_start(&self) {
        self.0.note("execute");
    }
    fn on_error(&self, _: Duration, error: &str, _: u32, _: Duration) {
        self.0.note(format!("error {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_a_payload_or_a_panic_that_panics_in_turn_is_survived() {
    let cancel = CancellationToken::new();
    let counter = Counter::default();
    let (every_second, _poker) = poker(SECOND, cancel.clone());
    let worker = WorkerBuilder::new("grenadier", cancel.clone())
        .notifier(every_second)
        .listener(counter.clone())
        .build(Grenadier(vec![In::Panic, In::Payload, In::Error]));
    run_for(worker, &cancel, 20 * SECOND).await;
    let executions = counter
        .0
        .events()
        .iter()
        .filter(|event| *event == "execute")
        .count();
    assert!(
        executions > 4,
        "the worker went on: {:?}",
        counter.0.events()
    );
    assert_eq!(
        counter.0.errors(),
        [
            "error panic: printing the error",
            "error panic: dropping",
            "error panic: a value that is not text",
        ]
    );
}
