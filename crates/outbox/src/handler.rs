//! What users implement, and what they answer. Two modes, each per message and per batch; the
//! framework's side of the contract is in `pipeline/deliver`.

use std::future::Future;

use futures_util::future::BoxFuture;
use sqlx::Database;
use tracing::Instrument as _;

use crate::batch::Batch;
use crate::message::OutboxMessage;
use crate::trace;

/// How a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerResult {
    /// All is well: settle what was handled.
    Success,
    /// Not now: settle what was handled before, and deliver the rest again after a backoff.
    Retry {
        /// Why, for the operator.
        reason: String,
    },
    /// Never: the message at fault goes to the dead letters.
    Reject {
        /// Why, for the operator.
        reason: String,
    },
}

/// How one message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageResult {
    /// Handled.
    Ok,
    /// Not now: deliver it again after a backoff.
    Retry,
    /// Never: it goes to the dead letters, for this reason.
    Reject(String),
}

/// Handles batches outside any transaction, at least once.
pub trait LeasedHandler: Send + Sync {
    /// Handles a batch: take messages, ack or reject each by name.
    fn handle(&self, batch: &mut Batch<'_>) -> impl Future<Output = HandlerResult> + Send;
}

/// Handles messages outside any transaction, at least once.
pub trait LeasedMessageHandler: Send + Sync {
    /// Handles one message.
    fn handle(&self, message: &OutboxMessage) -> impl Future<Output = MessageResult> + Send;
}

/// Handles batches inside the transaction that settles them: exactly once, as far as the database is
/// concerned.
pub trait TransactionalHandler<DB: Database>: Send + Sync {
    /// Handles a batch; what it writes through `connection` and the settlement commit together.
    fn handle(
        &self,
        connection: &mut DB::Connection,
        messages: &[OutboxMessage],
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// Handles messages inside the transaction that settles them: exactly once, as far as the database
/// is concerned, message by message.
pub trait TransactionalMessageHandler<DB: Database>: Send + Sync {
    /// Handles one message; what it writes through `connection` and the settlement commit together.
    fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> impl Future<Output = MessageResult> + Send;
}

impl<F, Answer> LeasedMessageHandler for F
where
    F: Fn(OutboxMessage) -> Answer + Send + Sync,
    Answer: Future<Output = MessageResult> + Send,
{
    fn handle(&self, message: &OutboxMessage) -> impl Future<Output = MessageResult> + Send {
        self(message.clone())
    }
}

impl<F, DB> TransactionalMessageHandler<DB> for F
where
    DB: Database,
    F: for<'a> Fn(&'a mut DB::Connection, &'a OutboxMessage) -> BoxFuture<'a, MessageResult>,
    F: Send + Sync,
{
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        self(connection, message).await
    }
}

/// A handler whose type is forgotten.
pub(crate) enum Handler<DB: Database> {
    /// `each`: whether it handles one message after the other, so that it is known which one failed.
    Leased {
        handler: Box<dyn DynLeased>,
        each: bool,
    },
    Transactional(Transactional<DB>),
}

/// A transactional handler whose type is forgotten.
pub(crate) enum Transactional<DB: Database> {
    Batch(Box<dyn DynTransactional<DB>>),
    Message(Box<dyn DynTransactionalMessage<DB>>),
}

impl<DB: Database> std::fmt::Debug for Handler<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Leased { .. } => "Leased",
            Self::Transactional(Transactional::Batch(_)) => "TransactionalBatch",
            Self::Transactional(Transactional::Message(_)) => "TransactionalMessage",
        })
    }
}

pub(crate) trait DynLeased: Send + Sync {
    fn handle<'a>(&'a self, batch: &'a mut Batch<'_>) -> BoxFuture<'a, HandlerResult>;
}

impl<H: LeasedHandler> DynLeased for H {
    fn handle<'a>(&'a self, batch: &'a mut Batch<'_>) -> BoxFuture<'a, HandlerResult> {
        Box::pin(LeasedHandler::handle(self, batch))
    }
}

/// Works through a batch one message at a time.
pub(crate) struct EachMessage<H>(pub(crate) H);

impl<H: LeasedMessageHandler> LeasedHandler for EachMessage<H> {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while !batch.remaining().is_zero()
            && let Some(message) = batch.next_msg()
        {
            let span = trace::handle(message);
            match self.0.handle(message).instrument(span).await {
                MessageResult::Ok => batch.ack(message),
                MessageResult::Reject(reason) => batch.reject(message, reason),
                MessageResult::Retry => {
                    return HandlerResult::Retry {
                        reason: RETRY_WITHOUT_REASON.to_owned(),
                    };
                }
            }
        }
        HandlerResult::Success
    }
}

pub(crate) const RETRY_WITHOUT_REASON: &str = "the handler asked for a retry";

pub(crate) trait DynTransactional<DB: Database>: Send + Sync {
    fn handle<'a>(
        &'a self,
        connection: &'a mut DB::Connection,
        messages: &'a [OutboxMessage],
    ) -> BoxFuture<'a, HandlerResult>;
}

impl<DB: Database, H: TransactionalHandler<DB>> DynTransactional<DB> for H {
    fn handle<'a>(
        &'a self,
        connection: &'a mut DB::Connection,
        messages: &'a [OutboxMessage],
    ) -> BoxFuture<'a, HandlerResult> {
        Box::pin(TransactionalHandler::handle(self, connection, messages))
    }
}

pub(crate) trait DynTransactionalMessage<DB: Database>: Send + Sync {
    fn handle<'a>(
        &'a self,
        connection: &'a mut DB::Connection,
        message: &'a OutboxMessage,
    ) -> BoxFuture<'a, MessageResult>;
}

impl<DB: Database, H: TransactionalMessageHandler<DB>> DynTransactionalMessage<DB> for H {
    fn handle<'a>(
        &'a self,
        connection: &'a mut DB::Connection,
        message: &'a OutboxMessage,
    ) -> BoxFuture<'a, MessageResult> {
        Box::pin(TransactionalMessageHandler::handle(
            self, connection, message,
        ))
    }
}
