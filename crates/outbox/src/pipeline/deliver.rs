//! Hands messages to a handler, within its time, and survives whatever it does. What its answer means
//! for the cursor is decided in `settle`.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt as _;
use taskward::panic;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::backend::{Backend, Burial, Savepoint, Seq};
use crate::batch::Batch;
use crate::error::OutboxError;
use crate::handler::{
    DynLeased, DynTransactional, DynTransactionalMessage, HandlerResult, MessageResult,
    RETRY_WITHOUT_REASON,
};
use crate::message::OutboxMessage;
use crate::trace;

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// How many messages, from the first on, are done with.
    pub(crate) settled: usize,
    /// Those of them that go to the dead letters.
    pub(crate) dead_letters: Vec<Burial>,
    /// What the handler, or the framework in its place, says of the rest.
    pub(crate) result: HandlerResult,
    /// Whether a failure is known to be that of the first message that is not settled.
    pub(crate) blamed: bool,
}

/// Why a transactional delivery can settle nothing.
#[derive(Debug)]
pub(crate) enum TransactionGone {
    /// The handler ran out of time or panicked at this message; its connection is in no state to go
    /// on with.
    Stopped {
        /// How many messages before it went well, and are now undone.
        before: usize,
        /// What happened.
        reason: String,
    },
    /// A deadlock, a commit or DDL inside the handler ended the transaction.
    Ended {
        /// How many messages before it went well.
        before: usize,
        /// What the database said.
        error: OutboxError,
    },
    /// The connection was lost before the handler ran: no failure of anybody's.
    Lost(OutboxError),
    /// It was lost after the handler had answered that all is well.
    LostAfter {
        /// How many messages came before that.
        before: usize,
        /// What the database said.
        error: OutboxError,
    },
}

fn retry(reason: impl Into<String>) -> HandlerResult {
    HandlerResult::Retry {
        reason: reason.into(),
    }
}

/// Runs a handler until its deadline. `Err` says why it did not come to an answer.
async fn within<T>(
    deadline: Instant,
    handler: impl Future<Output = T> + Send,
) -> Result<T, String> {
    let mut handler = pin!(Some(AssertUnwindSafe(handler).catch_unwind()));
    let answer = poll_fn(|context| match handler.as_mut().as_pin_mut() {
        Some(handler) => handler.poll(context),
        None => Poll::Pending,
    });
    let answer = timeout_at(deadline, answer).await;
    // One that was stopped may panic even now, when it is dropped: that adds nothing to its failure.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| handler.set(None))) {
        panic::discard(payload);
    }
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(payload)) => {
            let said = format!("the handler panicked: {}", panic::message(payload.as_ref()));
            panic::discard(payload);
            Err(said)
        }
        Err(_) => Err("lease expired".to_owned()),
    }
}

fn burial(message: &OutboxMessage, reason: impl Into<String>) -> Burial {
    Burial {
        id: message.id,
        seq: Seq(message.seq),
        attempts: message.attempts.saturating_add(1),
        reason: storable(&reason.into()),
    }
}

/// The most of a reason that is kept, in bytes.
const MAX_REASON: usize = 8192;

/// Any text as every database can store it: without NUL, and not megabytes of it.
pub(crate) fn storable(text: &str) -> String {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}

/// Delivers to a leased handler: no transaction, no connection. `each`: it handles one message after
/// the other. `lost`: the lease is gone, and whatever it still does is for nothing. `stop`: the process stops.
pub(crate) async fn leased(
    handler: &dyn DynLeased,
    each: bool,
    messages: &[OutboxMessage],
    deadline: Instant,
    lost: &CancellationToken,
    stop: &CancellationToken,
) -> Delivery {
    let mut batch = Batch::new(messages, deadline, stop.clone());
    // One that handles message by message has a span for each.
    let span = match each {
        true => Span::none(),
        false => trace::handle_batch(messages),
    };
    // What it does before its future is there may panic as well.
    let handled = async { handler.handle(&mut batch).await }.instrument(span);
    let handled = lost.run_until_cancelled(handled);
    let result = match within(deadline, handled).await {
        Ok(Some(result)) => result,
        Ok(None) => retry("the lease was lost"),
        Err(reason) => retry(reason),
    };
    let settled = batch.processed();
    let result = match result {
        HandlerResult::Success if settled == 0 => {
            retry("the handler answered success but acked nothing")
        }
        result => result,
    };
    let dead_letters = batch
        .rejected()
        .map(|(message, reason)| burial(message, reason))
        .collect();
    Delivery {
        settled,
        dead_letters,
        result,
        blamed: each,
    }
}

/// A step with a savepoint around the handler of the message that has so many before it.
async fn savepoint<DB: Backend>(
    connection: &mut DB::Connection,
    verb: Savepoint,
    before: usize,
) -> Result<(), TransactionGone> {
    let done = DB::savepoint(connection, verb).await;
    done.map_err(|error| match verb {
        Savepoint::Set if error.is_retryable() => TransactionGone::Lost(error),
        Savepoint::Release if error.is_retryable() => TransactionGone::LostAfter { before, error },
        _ => TransactionGone::Ended { before, error },
    })
}

/// Delivers to a transactional handler, each message in a savepoint of its own.
pub(crate) async fn transactional_messages<DB: Backend>(
    handler: &dyn DynTransactionalMessage<DB>,
    connection: &mut DB::Connection,
    messages: &[OutboxMessage],
    deadline: Instant,
) -> Result<Delivery, TransactionGone> {
    let mut delivery = Delivery {
        settled: 0,
        dead_letters: Vec::new(),
        result: HandlerResult::Success,
        blamed: true,
    };
    for (before, message) in messages.iter().enumerate() {
        // The soft stop: what was handled is settled, nothing new begins.
        if before > 0 && Instant::now() >= deadline {
            break;
        }
        savepoint::<DB>(connection, Savepoint::Set, before).await?;
        let span = trace::handle(message);
        let handled = async { handler.handle(connection, message).await }.instrument(span);
        let answer = within(deadline, handled)
            .await
            .map_err(|reason| TransactionGone::Stopped { before, reason })?;
        let verb = match &answer {
            MessageResult::Ok => Savepoint::Release,
            MessageResult::Retry | MessageResult::Reject(_) => Savepoint::Undo,
        };
        savepoint::<DB>(connection, verb, before).await?;
        match answer {
            MessageResult::Ok => {}
            MessageResult::Reject(reason) => delivery.dead_letters.push(burial(message, reason)),
            MessageResult::Retry => {
                delivery.result = retry(RETRY_WITHOUT_REASON);
                break;
            }
        }
        delivery.settled = before + 1;
    }
    Ok(delivery)
}

/// Delivers to a transactional handler, the whole batch in one savepoint: all or nothing.
pub(crate) async fn transactional_batch<DB: Backend>(
    handler: &dyn DynTransactional<DB>,
    connection: &mut DB::Connection,
    messages: &[OutboxMessage],
    deadline: Instant,
) -> Result<Delivery, TransactionGone> {
    savepoint::<DB>(connection, Savepoint::Set, 0).await?;
    let span = trace::handle_batch(messages);
    let handled = async { handler.handle(connection, messages).await }.instrument(span);
    let result = within(deadline, handled)
        .await
        .map_err(|reason| TransactionGone::Stopped { before: 0, reason })?;
    let (verb, settled) = match result {
        HandlerResult::Success => (Savepoint::Release, messages.len()),
        HandlerResult::Retry { .. } | HandlerResult::Reject { .. } => (Savepoint::Undo, 0),
    };
    savepoint::<DB>(connection, verb, 0).await?;
    Ok(Delivery {
        settled,
        dead_letters: Vec::new(),
        result,
        blamed: false,
    })
}

/// Buries the one message that is left when a batch of one was rejected.
pub(crate) fn bury_rejected(delivery: &mut Delivery, messages: &[OutboxMessage]) {
    if let (HandlerResult::Reject { reason }, [last]) =
        (&delivery.result, &messages[delivery.settled..])
    {
        delivery.dead_letters.push(burial(last, reason.as_str()));
        delivery.settled += 1;
    }
}

/// Buries the message that was tried too often.
pub(crate) fn bury_exhausted(delivery: &mut Delivery, head: &OutboxMessage, reason: &str) {
    delivery.dead_letters.push(burial(head, reason));
    delivery.settled += 1;
}
