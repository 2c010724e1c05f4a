//! What a set of tasks promises about its end.
#![cfg(not(shuttle))]

use std::time::Duration;

use taskward::{TaskOutcome, TaskSet};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn shutdown_reports_by_name_who_stopped_who_panicked_and_who_was_abandoned() {
    let cancel = CancellationToken::new();
    let mut tasks = TaskSet::new(cancel.clone()).shutdown_deadline(5 * SECOND);
    tasks.spawn("hung", std::future::pending());
    tasks.spawn("done", async {});
    tasks.spawn("broken", async { panic!("boom") });
    tasks.spawn("slow", {
        let cancel = cancel.clone();
        async move {
            cancel.cancelled().await;
            tokio::time::sleep(4 * SECOND).await;
        }
    });
    tasks.spawn("too slow", async move {
        cancel.cancelled().await;
        tokio::time::sleep(6 * SECOND).await;
    });
    assert_eq!(tasks.len(), 5);

    let started = tokio::time::Instant::now();
    let report = tasks.shutdown().await;
    assert_eq!(started.elapsed(), 5 * SECOND, "one deadline for all");
    let boom = TaskOutcome::Panicked("panic: boom".to_owned());
    let ends: Vec<_> = report.tasks().collect();
    assert_eq!(
        ends,
        [
            ("hung", &TaskOutcome::Abandoned),
            ("done", &TaskOutcome::Stopped),
            ("broken", &boom),
            ("slow", &TaskOutcome::Stopped),
            ("too slow", &TaskOutcome::Abandoned),
        ]
    );
    assert!(!report.is_clean());
    assert_eq!(
        report.to_string(),
        "2 of 5 stopped; hung: abandoned at the deadline; broken: panic: boom; \
         too slow: abandoned at the deadline"
    );
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_task_does_nothing_more() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<()>();
    let mut tasks = TaskSet::new(CancellationToken::new()).shutdown_deadline(SECOND);
    tasks.spawn("deaf", async move {
        loop {
            tokio::time::sleep(SECOND / 3).await;
            sender.send(()).expect("the test listens");
        }
    });
    tasks.shutdown().await;
    while receiver.recv().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn dropping_the_set_cancels_its_tasks() {
    let cancel = CancellationToken::new();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut tasks = TaskSet::new(cancel.clone());
    tasks.spawn("watcher", async move {
        cancel.cancelled().await;
        sender.send(()).expect("the test listens");
    });
    drop(tasks);
    receiver.await.expect("the task saw the cancellation");
}

#[tokio::test]
async fn an_empty_set_shuts_down_cleanly() {
    let tasks = TaskSet::new(CancellationToken::new());
    assert!(tasks.is_empty());
    assert!(tasks.shutdown().await.is_clean());
}
