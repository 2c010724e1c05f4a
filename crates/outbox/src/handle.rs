//! A running outbox: reach it, and stop it within a deadline.

use std::time::Duration;

use futures_util::future::join_all;
use taskward::ShutdownReport;
use tokio::time::timeout;

use crate::backend::{Backend, Lease};
use crate::engine::{Desk, Owed};
use crate::outbox::Outbox;
use crate::patience::answer_within;
use crate::workers::Workers;

/// How long giving back what is idle may take, and again all that is left to do after the last handler;
/// a database that does not answer must not keep us.
const FAREWELL: Duration = Duration::from_secs(5);
/// What each of the last steps may take of that, so that something is left for the next.
const LAST_STEP: Duration = Duration::from_secs(2);

/// A running outbox. Dropping it stops the workers without waiting for them; [`stop`](Self::stop)
/// also gives the leases back, so that others need not wait for them to run out.
#[derive(Debug)]
pub struct OutboxHandle<DB: Backend> {
    outbox: Outbox<DB>,
    workers: Workers,
}

impl<DB: Backend> OutboxHandle<DB> {
    pub(crate) fn new(outbox: Outbox<DB>, workers: Workers) -> Self {
        Self { outbox, workers }
    }

    /// The producer's side.
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Stops: partitions without a handler at work are given back at once; batches in hand are
    /// finished, or abandoned at the deadline, and given back then. Whatever the database does, this
    /// takes at most five seconds more than the
    /// [deadline](crate::OutboxBuilder::stop_deadline), or ten if that is shorter than five. The report
    /// says what was left undone.
    pub async fn stop(self) -> ShutdownReport {
        let Workers {
            cancel,
            workers,
            keepers,
        } = self.workers;
        cancel.cancel();
        let (report, ()) = tokio::join!(workers.shutdown(), give_back(&self.outbox, FAREWELL));
        // They may wait for an answer that never comes.
        keepers
            .shutdown_deadline(FAREWELL - LAST_STEP * 2)
            .shutdown()
            .await;
        give_back(&self.outbox, LAST_STEP).await;
        let engine = &self.outbox.engine;
        if !engine.staffed {
            return report;
        }
        let depart = DB::depart(&engine.store, &engine.incarnation);
        if let Err(error) = answer_within(LAST_STEP, depart).await {
            tracing::warn!(%error, "others will notice only later that this process has gone");
        }
        report
    }
}

/// Gives back the leases under which no handler runs. One that was abandoned may still run: its lease
/// is left to run out.
async fn give_back<DB: Backend>(outbox: &Outbox<DB>, limit: Duration) {
    let engine = &outbox.engine;
    let idle = |desk: &Desk| {
        let mut note = desk.note();
        if note.handling {
            None
        } else {
            let owed = note.owed.take();
            note.lease.take().map(|lease| (lease, owed))
        }
    };
    let idle: Vec<_> = engine.desks.values().filter_map(idle).collect();
    if idle.is_empty() {
        return;
    }
    // Each by itself: one whose row somebody has locked keeps no other.
    let release = async |(lease, owed): &(Lease, Option<Owed>)| {
        let partition_id = lease.partition_id.0;
        if let Some(owed) = owed {
            let settled = engine.settle_owed(*lease, owed);
            if let Err(error) = answer_within(limit / 2, settled).await {
                tracing::warn!(partition_id, %error, "what was handled last will be handled again");
            }
        }
        if let Err(error) = DB::release(&engine.store, *lease).await {
            tracing::warn!(partition_id, %error, "a lease could not be released and will run out");
        }
    };
    let all = join_all(idle.iter().map(release));
    if timeout(limit, all).await.is_err() {
        tracing::warn!("leases that could not be released in time will run out by themselves");
    }
}
