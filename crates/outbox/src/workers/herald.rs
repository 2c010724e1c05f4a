//! Signals between processes, where the database carries them: the herald tells others that there is
//! something for them, the listener rings the scout when another herald has. Both are a courtesy; the
//! scout finds everything by itself, only later.

use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::OutboxError;
use crate::patience::Patience;

/// Signals that come closer together than this are sent as one.
const COALESCE: Duration = Duration::from_millis(2);

/// Tells other processes. Rung when messages were sequenced that this process does not hold.
#[derive(Debug)]
pub(crate) struct Herald<DB: Backend> {
    pub(crate) engine: Arc<Engine<DB>>,
    pub(crate) patience: Patience,
}

impl<DB: Backend> WorkerAction for Herald<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, OutboxError> {
        self.patience.hear(DB::signal(&self.engine.store)).await?;
        // What is announced during this pause is remembered by the bell and sent at its end.
        tokio::time::sleep(COALESCE).await;
        Ok(Directive::idle())
    }
}

/// Hears other processes.
pub(crate) struct Listener<DB: Backend> {
    pub(crate) engine: Arc<Engine<DB>>,
    pub(crate) connection: Option<DB::Listener>,
    pub(crate) patience: Patience,
}

impl<DB: Backend> WorkerAction for Listener<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive, OutboxError> {
        // Taken out first: after an error, or a panic, it is made anew.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.patience.hear(DB::listen(&self.engine.store)).await?,
        };
        // Before the first signal too: nobody knows what was missed while not listening.
        self.engine.look_now();
        if let Some(heard) = cancel.run_until_cancelled(DB::hear(&mut connection)).await {
            heard?;
        }
        self.connection = Some(connection);
        Ok(Directive::proceed())
    }
}
