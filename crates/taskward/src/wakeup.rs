//! A worker's ears: several notifiers, none of which is ever missed.
//!
//! ```text
//!            listen, rearm                  heard                 (the loop executes)
//!   created ───────────────▶ armed ──────────────────▶ fired ──────┐
//!                              ▲                                   │
//!                              └────────────── rearm ◀─────────────┘
//! ```
//!
//! `Notify` keeps a permit for `notify_one` when nobody waits, but `notify_waiters` only reaches
//! futures that already exist. So there is one future per notifier at all times: made *before* the
//! execution that follows, polled only while the worker waits. Made early, it hears a broadcast that
//! comes while the worker runs; not polled early, it leaves a `notify_one` to a sibling that is free.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::runtime::tokio::sync::{Notify, futures::Notified};

/// Listens to a worker's notifiers. Allocates once, not per wait.
pub(crate) struct Wakeups<'a> {
    ears: Vec<(&'a Notify, Pin<Box<Notified<'a>>>)>,
}

impl<'a> Wakeups<'a> {
    pub(crate) fn listen(notifiers: &'a [Arc<Notify>]) -> Self {
        let ears = notifiers
            .iter()
            .map(|notify| (&**notify, Box::pin(notify.notified())));
        Self {
            ears: ears.collect(),
        }
    }

    /// Completes when any notifier has fired, and takes in all that have: one execution answers
    /// them all. Without notifiers it never completes.
    pub(crate) async fn heard(&mut self) {
        poll_fn(|context| {
            let mut heard = false;
            for (_, notified) in &mut self.ears {
                heard |= notified.as_mut().poll(context).is_ready();
            }
            if heard {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Listens anew. Call it before the execution that answers what was heard: what comes after
    /// this is for the next one. A `notify_one` that reached a future without being heard goes back
    /// to its notifier.
    pub(crate) fn rearm(&mut self) {
        for (notify, notified) in &mut self.ears {
            notified.set(notify.notified());
        }
    }
}
