//! Many workers: one place that spawns them, and one that stops them within a deadline and says who
//! stopped, who panicked and who would not.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::panic;
use crate::runtime::tokio;
use crate::runtime::tokio::task::JoinHandle;
use crate::runtime::tokio::time::Instant;
use crate::runtime::tokio_util::sync::CancellationToken;

/// How long [`TaskSet::shutdown`] waits unless told otherwise.
pub const DEFAULT_SHUTDOWN_DEADLINE: Duration = Duration::from_secs(30);

/// The longest [`TaskSet::shutdown`] can be told to wait.
pub const MAX_SHUTDOWN_DEADLINE: Duration = Duration::from_hours(24);

/// How a task of a [`TaskSet`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskOutcome {
    /// It returned.
    Stopped,
    /// It panicked, with this message.
    Panicked(String),
    /// It was still running at the deadline and was aborted: it ends at its next await, and never
    /// if it blocks its thread.
    Abandoned,
}

/// How each task ended, in the order they were spawned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownReport(Vec<(String, TaskOutcome)>);

impl ShutdownReport {
    /// Every task with its name and its end.
    pub fn tasks(&self) -> impl ExactSizeIterator<Item = (&str, &TaskOutcome)> {
        self.0
            .iter()
            .map(|(name, outcome)| (name.as_str(), outcome))
    }

    /// Whether every task stopped by itself, without a panic.
    pub fn is_clean(&self) -> bool {
        self.0
            .iter()
            .all(|(_, outcome)| *outcome == TaskOutcome::Stopped)
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = self
            .0
            .iter()
            .filter(|(_, end)| *end == TaskOutcome::Stopped)
            .count();
        write!(f, "{stopped} of {} stopped", self.0.len())?;
        for (name, outcome) in &self.0 {
            match outcome {
                TaskOutcome::Stopped => {}
                TaskOutcome::Panicked(message) => write!(f, "; {name}: {message}")?,
                TaskOutcome::Abandoned => write!(f, "; {name}: abandoned at the deadline")?,
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct NamedTask {
    name: String,
    handle: JoinHandle<TaskOutcome>,
}

/// Tasks that are stopped together. Dropping the set cancels its token and leaves the tasks to end
/// by themselves.
#[derive(Debug)]
pub struct TaskSet {
    cancel: CancellationToken,
    deadline: Duration,
    tasks: Vec<NamedTask>,
}

impl TaskSet {
    /// An empty set whose tasks watch `cancel`.
    pub fn new(cancel: CancellationToken) -> Self {
        Self {
            cancel,
            deadline: DEFAULT_SHUTDOWN_DEADLINE,
            tasks: Vec::new(),
        }
    }

    /// How long [`shutdown`](Self::shutdown) waits for all tasks together, at most
    /// [`MAX_SHUTDOWN_DEADLINE`].
    #[must_use]
    pub fn shutdown_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(MAX_SHUTDOWN_DEADLINE);
        self
    }

    /// Spawns a task. If it panics, its siblings go on, the log says so at once and the shutdown
    /// report says so in the end.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let name = name.into();
        let task = name.clone();
        let handle = tokio::task::spawn(async move {
            let Err(payload) = AssertUnwindSafe(future).catch_unwind().await else {
                return TaskOutcome::Stopped;
            };
            let message = panic::describe(payload.as_ref());
            panic::discard(payload);
            tracing::error!(task, error = message, "task panicked");
            TaskOutcome::Panicked(message)
        });
        self.tasks.push(NamedTask { name, handle });
    }

    /// How many tasks were spawned.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether no task was spawned.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Cancels the token and waits for every task, at most until the deadline; whoever is still
    /// running then is aborted and reported as abandoned.
    pub async fn shutdown(mut self) -> ShutdownReport {
        self.cancel.cancel();
        let deadline = Instant::now() + self.deadline;
        let mut report = Vec::with_capacity(self.tasks.len());
        for NamedTask { name, mut handle } in std::mem::take(&mut self.tasks) {
            let outcome = match tokio::time::timeout_at(deadline, &mut handle).await {
                Ok(Ok(outcome)) => outcome,
                // The runtime went down before the task did.
                Ok(Err(_)) => TaskOutcome::Abandoned,
                Err(_) => {
                    handle.abort();
                    TaskOutcome::Abandoned
                }
            };
            match outcome {
                TaskOutcome::Abandoned => tracing::warn!(task = name, "task abandoned"),
                _ => tracing::debug!(task = name, ?outcome, "task ended"),
            }
            report.push((name, outcome));
        }
        ShutdownReport(report)
    }
}

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
