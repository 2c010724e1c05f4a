//! What a system under measurement can do.

use std::future::Future;
use std::sync::Arc;

use anyhow::Result;

use crate::payload::Message;
use crate::sink::Sink;
use crate::task::Task;

/// What is to run in this process.
#[derive(Debug, Clone)]
pub enum Start {
    /// Nothing: only enqueuing is measured, or a backlog is made that nobody touches yet.
    Nothing,
    /// What a process that only produces runs in the background.
    Background,
    /// Handlers that report to this sink.
    Handlers(Arc<Sink>),
}

/// A system under measurement.
pub trait System: Sized + Send + Sync + 'static {
    /// Connects; no work begins.
    fn connect(task: &Task) -> impl Future<Output = Result<Self>> + Send;

    /// Creates the schema and the queue.
    fn prepare(&mut self, task: &Task) -> impl Future<Output = Result<()>> + Send;

    /// Begins work; the clock runs from here.
    fn start(&mut self, task: &Task, start: Start) -> impl Future<Output = Result<()>> + Send;

    /// Writes messages in one transaction and commits it, the way that lets handlers know soonest.
    fn produce(&self, messages: Vec<Message>) -> impl Future<Output = Result<()>> + Send;

    /// Ends work in good order.
    fn stop(self) -> impl Future<Output = Result<()>> + Send;
}
