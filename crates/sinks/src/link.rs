//! The connection of a sink to its broker: made when it is needed, given up after a failure, never mended.
//! A client that mends its connection by itself sends again what it thinks is lost, in an order of its own;
//! the outbox sends again in the right one.

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
use outbox::OutboxMessage;
use tokio::time::{Instant, timeout_at};

#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
use crate::Published;
use crate::Refusal;
use crate::error::SinkError;

/// How long a broker may take unless configured otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that may have ended.
pub(crate) trait Link {
    fn is_alive(&self) -> bool;
}

/// The one connection of a sink, which all partitions share, and how it is used.
#[derive(Debug)]
pub(crate) struct Lane<L> {
    /// How many messages of a partition are on their way at once.
    pub(crate) window: usize,
    /// How long a broker may take for them.
    pub(crate) timeout: Duration,
    connection: tokio::sync::Mutex<Option<Arc<L>>>,
}

impl<L: Link> Lane<L> {
    /// One without a connection yet, if a sink can work like that.
    pub(crate) fn new(window: usize, timeout: Duration) -> Result<Self, SinkError> {
        if window == 0 {
            return Err(SinkError::invalid("window", "0", "1 or more"));
        }
        if timeout.is_zero() {
            return Err(SinkError::invalid("timeout", "0", "longer than 0"));
        }
        Ok(Self {
            window,
            timeout,
            connection: tokio::sync::Mutex::new(None),
        })
    }

    /// The connection that there is, or a new one.
    pub(crate) async fn get(
        &self,
        connect: impl Future<Output = Result<L, String>>,
    ) -> Result<Arc<L>, String> {
        let mut connection = self.connection.lock().await;
        if let Some(link) = connection.as_ref().filter(|link| link.is_alive()) {
            return Ok(Arc::clone(link));
        }
        *connection = None;
        let link = Arc::new(connect.await?);
        *connection = Some(Arc::clone(&link));
        Ok(link)
    }
}

/// The end of a broker's time to answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    broker: &'static str,
    timeout: Duration,
    at: Instant,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration, broker: &'static str) -> Self {
        Self {
            broker,
            timeout,
            at: Instant::now() + timeout,
        }
    }

    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What a future comes to, if it does so in time.
    pub(crate) async fn limit<T>(&self, future: impl Future<Output = T>) -> Result<T, String> {
        timeout_at(self.at, future).await.map_err(|_| {
            let (broker, timeout) = (self.broker, humantime::format_duration(self.timeout));
            format!("{broker} did not answer within {timeout}")
        })
    }
}

/// A sink whose connection can be given up, and with it what was sent and has no answer.
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
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
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub(crate) async fn publish<S: Connected>(sink: &S, messages: &[OutboxMessage]) -> Published {
    let lane = sink.lane();
    let deadline = Deadline::after(lane.timeout, S::BROKER);
    let connected = lane.get(sink.open(&deadline));
    let connection = match deadline.limit(connected).await.flatten() {
        Ok(connection) => connection,
        Err(problem) => return Published::until(0, Refusal::later(problem)),
    };
    let mut confirmed = 0;
    let sent = deadline.limit(sink.send(&connection, messages, &mut confirmed));
    let (refusal, is_silent) = match sent.await {
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
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub(crate) async fn check<S: Connected>(sink: &S) -> Result<(), String> {
    let deadline = Deadline::after(sink.lane().timeout, S::BROKER);
    let looked = async { sink.look(&sink.open(&deadline).await?).await };
    deadline.limit(looked).await.flatten()
}

/// Makes a [`Sink`](crate::Sink) of what is [`Connected`].
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
macro_rules! publishes_when_connected {
    ($sink:ident) => {
        impl $crate::Sink for $sink {
            async fn publish(&self, messages: &[outbox::OutboxMessage]) -> $crate::Published {
                $crate::link::publish(self, messages).await
            }

            fn window(&self) -> usize {
                self.lane.window
            }

            async fn check(&self) -> Result<(), String> {
                $crate::link::check(self).await
            }
        }
    };
}
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub(crate) use publishes_when_connected;

/// What a broker could not take now.
pub(crate) fn later(broker: &str, problem: impl std::fmt::Display) -> Refusal {
    Refusal::later(format!("{broker}: {problem}"))
}
