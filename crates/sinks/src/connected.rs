//! Sinks that hold one connection open and give it up with everything that has no answer.

use outbox::OutboxMessage;

use crate::link::{Deadline, Lane, Link, Unanswered};
use crate::{Published, Refusal, SinkError};

/// Refuses a URL whose user or password has something in it that ends them: the rest of it would be a host's
/// name, and be told to everybody.
pub(crate) fn whole(url: &str) -> Result<&str, SinkError> {
    let (_, address) = url.split_once("://").unwrap_or(("", url));
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    if !address[end..].contains('@') {
        return Ok(url);
    }
    let allowed = "a URL, in whose user and password / is written as %2F, ? as %3F, # as %23, % as %25, : as %3A, \
                   @ as %40 and , as %2C";
    Err(SinkError::invalid("url", "…", allowed))
}

/// A sink whose connection can be given up, and with it what was sent and has no answer.
pub(crate) trait Connected: Sync {
    const BROKER: &'static str;
    type Connection: Link + Send + Sync;

    fn lane(&self) -> &Lane<Self::Connection>;

    fn open(
        &self,
        deadline: &Deadline,
    ) -> impl Future<Output = Result<Self::Connection, String>> + Send;

    /// Says what is wrong with what messages would go to, as far as it is known before they come.
    fn look(&self, _: &Self::Connection) -> impl Future<Output = Result<(), String>> + Send {
        async { Ok(()) }
    }

    /// Counts what is confirmed, up to the first that is not.
    fn send(
        &self,
        connection: &Self::Connection,
        messages: &[OutboxMessage],
        confirmed: &mut usize,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Where it may work later, that is on another connection; unless the broker has answered, and others can
    /// go on with this one.
    fn give_up(connection: &Self::Connection, is_silent: bool);

    /// A problem, with what may be its cause.
    fn explain(_: &Self::Connection, problem: String) -> String {
        problem
    }
}

/// Sends a window on the connection that there is, or a new one.
pub(crate) async fn publish<S: Connected>(sink: &S, messages: &[OutboxMessage]) -> Published {
    let lane = sink.lane();
    let deadline = Deadline::after(lane.timeout, S::BROKER);
    let connected = lane.get(sink.open(&deadline));
    let connection = match deadline.limit(connected).await.flatten() {
        Ok(connection) => connection,
        Err(problem) => return Published::until(0, Refusal::later(problem)),
    };
    let mut confirmed = 0;
    let unanswered = Unanswered::or(|| S::give_up(&connection, true));
    let sent = deadline.limit(sink.send(&connection, messages, &mut confirmed));
    let sent = sent.await;
    unanswered.answered();
    let (refusal, is_silent) = match sent {
        Ok(Ok(())) => return Published::all(messages),
        Ok(Err(refusal)) => (refusal, false),
        Err(problem) => (Refusal::later(S::explain(&connection, problem)), true),
    };
    if let Refusal::Later { .. } = refusal {
        S::give_up(&connection, is_silent);
    }
    Published::until(confirmed, refusal)
}

/// Tries a connection of its own: of one that is there nobody may have noticed yet that it has ended.
pub(crate) async fn check<S: Connected>(sink: &S) -> Result<(), String> {
    let deadline = Deadline::after(sink.lane().timeout, S::BROKER);
    let looked = async { sink.look(&sink.open(&deadline).await?).await };
    deadline.limit(looked).await.flatten()
}

/// Makes a [`Sink`](crate::Sink) of what is [`Connected`].
macro_rules! publishes_when_connected {
    ($sink:ident) => {
        impl $crate::Sink for $sink {
            async fn publish(&self, messages: &[outbox::OutboxMessage]) -> $crate::Published {
                $crate::connected::publish(self, messages).await
            }

            fn window(&self) -> usize {
                self.lane.window
            }

            async fn check(&self) -> Result<(), String> {
                $crate::connected::check(self).await
            }
        }
    };
}
pub(crate) use publishes_when_connected;
