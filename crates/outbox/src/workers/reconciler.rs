//! The safety net: rings every bell now and then, whatever the signals say.

use std::sync::Arc;

use taskward::{Directive, WorkerAction};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::OutboxError;

#[derive(Debug)]
pub(crate) struct Reconciler<DB: Backend> {
    pub(crate) engine: Arc<Engine<DB>>,
}

impl<DB: Backend> WorkerAction for Reconciler<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, OutboxError> {
        self.engine.meters.reconciled.increment(1);
        self.engine.mark(self.engine.partition_ids());
        for desk in self.engine.desks.values() {
            desk.bell.notify_one();
        }
        self.engine.scout_bell.notify_one();
        for partition_id in self.engine.partition_ids() {
            self.engine.note_settled(partition_id);
        }
        Ok(Directive::idle())
    }
}
