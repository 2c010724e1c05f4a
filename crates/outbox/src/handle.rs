//! A running outbox: reach it, and stop it within a deadline.

use std::time::Duration;

use taskward::{ShutdownReport, TaskSet};

use crate::backend::{Backend, Lease};
use crate::outbox::Outbox;

/// How long giving leases back may take; a database that does not answer must not keep us.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running outbox. Dropping it stops the workers without waiting for them; [`stop`](Self::stop)
/// also gives the leases back, so that others need not wait for them to run out.
#[derive(Debug)]
pub struct OutboxHandle<DB: Backend> {
    outbox: Outbox<DB>,
    workers: TaskSet,
}

impl<DB: Backend> OutboxHandle<DB> {
    pub(crate) fn new(outbox: Outbox<DB>, workers: TaskSet) -> Self {
        Self { outbox, workers }
    }

    /// The producer's side.
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Stops: batches in hand are finished, or abandoned at the deadline; leases are released; the
    /// report says what was left undone.
    pub async fn stop(self) -> ShutdownReport {
        let report = self.workers.shutdown().await;
        let engine = &self.outbox.engine;
        // A handler that was abandoned may still run: its lease is left to run out.
        let leases: Vec<Lease> = engine
            .desks
            .values()
            .filter_map(|desk| {
                let note = desk.note();
                note.lease.filter(|_| !note.handling)
            })
            .collect();
        let farewell = async {
            if !leases.is_empty() {
                DB::release(&engine.store, &leases).await?;
            }
            DB::depart(&engine.store, &engine.incarnation).await
        };
        let said = tokio::time::timeout(FAREWELL, farewell).await;
        if !matches!(said, Ok(Ok(()))) {
            tracing::warn!("leases could not be released and will run out by themselves");
        }
        report
    }
}
