//! An action that follows a script and keeps a journal: what most worker tests need.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskward::{Directive, WorkerAction, WorkerTask};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What one execution does.
#[derive(Clone)]
pub(crate) enum Step {
    Return(Directive),
    Work(Duration, Directive),
    Fail(&'static str),
    Panic(&'static str),
}

/// When each execution began, counted from the journal's creation.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Mutex<Vec<Duration>>>, Instant);

impl Journal {
    pub(crate) fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    pub(crate) fn starts(&self) -> Vec<Duration> {
        self.0.lock().expect("no panic inside").clone()
    }

    pub(crate) fn executions(&self) -> usize {
        self.0.lock().expect("no panic inside").len()
    }

    /// The times between one start and the next.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.starts()
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect()
    }
}

/// Follows its steps, then is idle for ever.
pub(crate) struct Scripted {
    steps: VecDeque<Step>,
    journal: Journal,
}

impl Scripted {
    pub(crate) fn new(journal: &Journal, steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: steps.into_iter().collect(),
            journal: journal.clone(),
        }
    }
}

impl WorkerAction for Scripted {
    type Payload = ();
    type Error = &'static str;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, &'static str> {
        self.journal
            .0
            .lock()
            .expect("no panic inside")
            .push(self.journal.1.elapsed());
        match self
            .steps
            .pop_front()
            .unwrap_or(Step::Return(Directive::idle()))
        {
            Step::Return(directive) => Ok(directive),
            Step::Work(duration, directive) => {
                tokio::time::sleep(duration).await;
                Ok(directive)
            }
            Step::Fail(error) => Err(error),
            Step::Panic(message) => panic!("{message}"),
        }
    }
}

/// Runs a worker for some (virtual) time, then cancels it and waits for its end.
pub(crate) async fn run_for<A: WorkerAction>(
    worker: WorkerTask<A>,
    cancel: &CancellationToken,
    duration: Duration,
) {
    let stop = async {
        tokio::time::sleep(duration).await;
        cancel.cancel();
    };
    tokio::join!(worker.run(), stop);
}
