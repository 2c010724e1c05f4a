//! What a worker does, and what it wants to happen next. Knows nothing of loops or clocks; how a
//! directive is obeyed is in [`task`](crate::task).

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use crate::runtime::tokio_util::sync::CancellationToken;

/// What the loop does after one execution. Carries a payload for the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directive<P = ()> {
    /// There is more to do: execute again, at the current pace.
    Proceed(P),
    /// Nothing to do: wait for a notifier.
    Idle(P),
    /// Nothing to do for now: wait for a notifier, but no longer than this.
    Sleep(Duration, P),
}

impl<P> Directive<P> {
    /// What the execution reported.
    pub fn payload(&self) -> &P {
        match self {
            Self::Proceed(payload) | Self::Idle(payload) | Self::Sleep(_, payload) => payload,
        }
    }

    /// The same directive with another payload.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Directive<Q> {
        match self {
            Self::Proceed(payload) => Directive::Proceed(f(payload)),
            Self::Idle(payload) => Directive::Idle(f(payload)),
            Self::Sleep(duration, payload) => Directive::Sleep(duration, f(payload)),
        }
    }

    /// The same directive without its payload.
    pub fn strip(&self) -> Directive {
        match *self {
            Self::Proceed(_) => Directive::proceed(),
            Self::Idle(_) => Directive::idle(),
            Self::Sleep(duration, _) => Directive::sleep(duration),
        }
    }
}

impl Directive {
    /// [`Directive::Proceed`] without a payload.
    pub const fn proceed() -> Self {
        Self::Proceed(())
    }

    /// [`Directive::Idle`] without a payload.
    pub const fn idle() -> Self {
        Self::Idle(())
    }

    /// [`Directive::Sleep`] without a payload.
    pub const fn sleep(duration: Duration) -> Self {
        Self::Sleep(duration, ())
    }
}

/// One unit of work, executed again and again by a worker's loop. Implement it with a plain
/// `async fn execute`.
pub trait WorkerAction: Send {
    /// What an execution reports to the listeners.
    type Payload: 'static;
    /// Why an execution failed. The loop only ever prints it.
    type Error: Display;

    /// Does the work once.
    ///
    /// `cancel` is the worker's own token. The loop never drops an execution half-way, so a long
    /// one should watch the token and return early.
    ///
    /// An `Err`, or a panic under [`PanicPolicy::CatchAndRetry`](crate::task::PanicPolicy), makes
    /// the worker rest for its backoff and then wait as if idle. After a panic `self` is used
    /// again as the panic left it.
    fn execute(
        &mut self,
        cancel: &CancellationToken,
    ) -> impl Future<Output = Result<Directive<Self::Payload>, Self::Error>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_map_and_strip_keep_the_kind_and_the_duration() {
        let second = Duration::from_secs(1);
        for (directive, stripped) in [
            (Directive::Proceed(7), Directive::proceed()),
            (Directive::Idle(7), Directive::idle()),
            (Directive::Sleep(second, 7), Directive::sleep(second)),
        ] {
            assert_eq!(*directive.payload(), 7);
            assert_eq!(directive.strip(), stripped);
            assert_eq!(directive.map(|n| n.to_string()).map(|_| ()), stripped);
        }
    }
}
