//! The loop that runs one worker: wait as the last directive says, queue for a permit, execute,
//! tell the listeners. What is waited for is in `wakeup`, how fast in [`pacing`](crate::pacing), how
//! failures are slowed down in [`bulkhead`](crate::bulkhead).
//!
//! ```text
//!            ┌──────────────── Proceed: pause at the current pace ────────────────┐
//!            ▼                                                                    │
//!   start ▶ wait ──(notified, or slept enough)──▶ permit ──▶ execute ──▶ directive┤
//!            ▲                                                   │                │
//!            │                                     error, panic: rest, then Idle  │
//!            └──────────────── Idle, Sleep ◀─────────────────────┴────────────────┘
//! ```
//!
//! The loop begins idle. Cancellation ends it between executions, never inside one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::action::{Directive, WorkerAction};
use crate::bulkhead::{Bulkhead, Permit};
use crate::listener::{Listeners, WorkerListener};
use crate::pacing::{Pace, PacingConfig};
use crate::panic;
use crate::runtime::tokio::sync::Notify;
use crate::runtime::tokio::time::Instant;
use crate::runtime::tokio_util::sync::CancellationToken;
use crate::runtime::{pause, tokio};
use crate::wakeup::Wakeups;

/// What a worker does when its action panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PanicPolicy {
    /// Count it as a failed execution and go on.
    #[default]
    CatchAndRetry,
    /// Tell the listeners, then let it end the worker; whoever runs the worker sees the panic.
    Propagate,
}

/// Puts a worker together.
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder<P = ()> {
    name: String,
    cancel: CancellationToken,
    notifiers: Vec<Arc<Notify>>,
    pacing: PacingConfig,
    bulkhead: Bulkhead,
    listeners: Listeners<P>,
    panic_policy: PanicPolicy,
}

impl<P: 'static> WorkerBuilder<P> {
    /// A worker without notifiers, limits or listeners, ended by `cancel`.
    pub fn new(name: impl Into<String>, cancel: CancellationToken) -> Self {
        Self {
            name: name.into(),
            cancel,
            notifiers: Vec::new(),
            pacing: PacingConfig::default(),
            bulkhead: Bulkhead::default(),
            listeners: Listeners(Vec::new()),
            panic_policy: PanicPolicy::default(),
        }
    }

    /// Adds a notifier. Any of them wakes the worker.
    ///
    /// `notify_one` is remembered from the notifier's beginning, `notify_waiters` from the moment
    /// the worker's `on_start` is told.
    pub fn notifier(mut self, notify: Arc<Notify>) -> Self {
        self.notifiers.push(notify);
        self
    }

    /// How fast the worker goes while there is more to do.
    pub fn pacing(mut self, pacing: impl Into<PacingConfig>) -> Self {
        self.pacing = pacing.into();
        self
    }

    /// How many such workers execute at once, and how long this one rests after a failure.
    pub fn bulkhead(mut self, bulkhead: Bulkhead) -> Self {
        self.bulkhead = bulkhead;
        self
    }

    /// Adds a listener.
    pub fn listener(mut self, listener: impl WorkerListener<P> + 'static) -> Self {
        self.listeners.0.push(Box::new(listener));
        self
    }

    /// What happens when the action panics.
    pub fn on_panic(mut self, policy: PanicPolicy) -> Self {
        self.panic_policy = policy;
        self
    }

    /// The worker, ready to [`run`](WorkerTask::run).
    pub fn build<A: WorkerAction<Payload = P>>(self, action: A) -> WorkerTask<A> {
        WorkerTask {
            worker: self,
            action,
        }
    }
}

/// A worker: an action and the loop around it.
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is awaited"]
pub struct WorkerTask<A: WorkerAction> {
    worker: WorkerBuilder<A::Payload>,
    action: A,
}

impl<A: WorkerAction> WorkerTask<A> {
    /// Runs the worker until its token is cancelled.
    ///
    /// # Panics
    ///
    /// When the action panics under [`PanicPolicy::Propagate`], and only then.
    pub async fn run(self) {
        let span = tracing::info_span!("worker", name = %self.worker.name);
        self.run_to_cancellation().instrument(span).await;
    }

    async fn run_to_cancellation(mut self) {
        let notifiers = std::mem::take(&mut self.worker.notifiers);
        let mut wakeups = Wakeups::listen(&notifiers);
        let mut pace = Pace::new(self.worker.pacing);
        let mut directive = Directive::idle();
        self.worker.listeners.tell(|listener| listener.on_start());
        while let Some(permit) = self.worker.due(directive, &mut pace, &mut wakeups).await {
            directive = match self.execute().await {
                Ok(directive) => directive,
                Err(payload) => {
                    self.worker.listeners.tell(|listener| listener.on_stop());
                    drop((permit, self));
                    resume_unwind(payload)
                }
            };
            drop(permit);
        }
        self.worker.listeners.tell(|listener| listener.on_stop());
    }

    /// Executes once. `Err` is a panic that must go on.
    ///
    /// Everything that belongs to the user, the action, its error's `Display` and the payload's
    /// drop, runs inside the one `catch_unwind`.
    async fn execute(&mut self) -> Result<Directive, Box<dyn Any + Send>> {
        let Self { worker, action } = self;
        worker
            .listeners
            .tell(|listener| listener.on_execute_start());
        let started = Instant::now();
        let execution = async {
            match action.execute(&worker.cancel).await {
                Ok(directive) => {
                    let duration = started.elapsed();
                    worker
                        .listeners
                        .tell(|listener| listener.on_complete(duration, &directive));
                    Ok(directive.strip())
                }
                Err(error) => Err(error.to_string()),
            }
        };
        match AssertUnwindSafe(execution).catch_unwind().await {
            Ok(Ok(directive)) => {
                worker.bulkhead.reset();
                Ok(directive)
            }
            Ok(Err(error)) => Ok(worker.failed(started.elapsed(), &error)),
            Err(payload) => {
                let idle = worker.failed(started.elapsed(), &panic::describe(payload.as_ref()));
                match worker.panic_policy {
                    PanicPolicy::Propagate => Err(payload),
                    PanicPolicy::CatchAndRetry => {
                        panic::discard(payload);
                        Ok(idle)
                    }
                }
            }
        }
    }
}

impl<P> WorkerBuilder<P> {
    /// Waits until the next execution is due and may run. `None`: cancelled.
    async fn due(
        &self,
        directive: Directive,
        pace: &mut Pace,
        wakeups: &mut Wakeups<'_>,
    ) -> Option<Permit> {
        self.cancel
            .run_until_cancelled(self.wait(directive, pace, wakeups))
            .await?;
        let permit = self.bulkhead.acquire(&self.cancel).await;
        if permit.is_none() && !self.cancel.is_cancelled() {
            tracing::error!(
                bulkhead = self.bulkhead.name(),
                "every semaphore of the bulkhead is closed: the worker can never execute again",
            );
            self.cancel.cancelled().await;
        }
        permit.filter(|_| !self.cancel.is_cancelled())
    }

    async fn wait(&self, directive: Directive, pace: &mut Pace, wakeups: &mut Wakeups<'_>) {
        match directive {
            Directive::Proceed(()) => return pause(pace.step()).await,
            Directive::Idle(()) => {
                self.listeners.tell(|listener| listener.on_idle());
                pause(self.bulkhead.min_interval()).await;
                wakeups.heard().await;
            }
            Directive::Sleep(duration, ()) => {
                self.listeners.tell(|listener| listener.on_sleep(duration));
                tokio::select! {
                    () = wakeups.heard() => {}
                    () = pause(duration) => {}
                }
            }
        }
        wakeups.rearm();
        pace.restart();
    }

    /// Notes a failed execution. What follows is a rest and then a wait as if idle.
    fn failed(&mut self, duration: Duration, error: &str) -> Directive {
        self.bulkhead.escalate();
        let failures = self.bulkhead.consecutive_failures();
        let backoff = self.bulkhead.min_interval();
        self.listeners
            .tell(|listener| listener.on_error(duration, error, failures, backoff));
        Directive::idle()
    }
}
