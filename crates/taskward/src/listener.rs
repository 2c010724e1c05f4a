//! What observers of a worker see. Listeners are told, never asked: nothing they do, not even a
//! panic, changes what the worker does next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::action::Directive;
use crate::panic;

/// Is told what a worker does. Every method has an empty default. They run inside the worker's loop:
/// keep them short and do not block.
pub trait WorkerListener<P = ()>: Send + Sync {
    /// The loop begins.
    fn on_start(&self) {}

    /// The loop ends.
    fn on_stop(&self) {}

    /// An execution begins; its permit is held.
    fn on_execute_start(&self) {}

    /// An execution succeeded.
    fn on_complete(&self, duration: Duration, directive: &Directive<P>) {
        let _ = (duration, directive);
    }

    /// An execution failed or panicked, for the `consecutive_failures`-th time in a row; the worker
    /// rests for `backoff` before it waits again.
    fn on_error(
        &self,
        duration: Duration,
        error: &str,
        consecutive_failures: u32,
        backoff: Duration,
    ) {
        let _ = (duration, error, consecutive_failures, backoff);
    }

    /// The worker waits for a notifier.
    fn on_idle(&self) {}

    /// The worker waits for a notifier, at most for `duration`.
    fn on_sleep(&self, duration: Duration) {
        let _ = duration;
    }
}

/// Logs what a worker does through `tracing`: its life at debug, its executions at trace, a first
/// failure at info, and failures that repeat as warnings.
#[derive(Debug, Clone, Copy, Default)]
pub struct TracingListener;

impl<P> WorkerListener<P> for TracingListener {
    fn on_start(&self) {
        tracing::debug!("worker started");
    }

    fn on_stop(&self) {
        tracing::debug!("worker stopped");
    }

    fn on_execute_start(&self) {
        tracing::trace!("execution started");
    }

    fn on_complete(&self, duration: Duration, directive: &Directive<P>) {
        tracing::trace!(?duration, directive = ?directive.strip(), "execution completed");
    }

    fn on_error(
        &self,
        duration: Duration,
        error: &str,
        consecutive_failures: u32,
        backoff: Duration,
    ) {
        if consecutive_failures > 1 {
            tracing::warn!(
                ?duration,
                error,
                consecutive_failures,
                ?backoff,
                "worker keeps failing"
            );
        } else {
            tracing::info!(?duration, error, ?backoff, "execution failed");
        }
    }

    fn on_idle(&self) {
        tracing::trace!("waiting for a notification");
    }

    fn on_sleep(&self, duration: Duration) {
        tracing::trace!(?duration, "sleeping");
    }
}

/// The listeners of one worker.
pub(crate) struct Listeners<P>(pub(crate) Vec<Box<dyn WorkerListener<P>>>);

impl<P> Listeners<P> {
    /// Tells every listener, also those behind one that panics.
    pub(crate) fn tell(&self, event: impl Fn(&dyn WorkerListener<P>)) {
        for listener in &self.0 {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| event(listener.as_ref()))) {
                tracing::error!(
                    error = panic::describe(payload.as_ref()),
                    "a listener panicked"
                );
                panic::discard(payload);
            }
        }
    }
}

impl<P> std::fmt::Debug for Listeners<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}
