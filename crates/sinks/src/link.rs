//! The connection of a sink to its broker: made when it is needed, given up after a failure, never mended.
//! A client that mends its connection by itself sends again what it thinks is lost, in an order of its own;
//! the outbox sends again in the right one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::Refusal;
use crate::error::SinkError;

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

/// Gives something up, unless its answers were waited for: whoever publishes may be dropped in the middle.
pub(crate) struct Unanswered<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Unanswered<F> {
    pub(crate) fn or(give_up: F) -> Self {
        Self(Some(give_up))
    }

    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Unanswered<F> {
    fn drop(&mut self) {
        if let Some(give_up) = self.0.take() {
            give_up();
        }
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

    #[cfg(feature = "nats")]
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What is left of it.
    #[cfg(feature = "kafka")]
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// What a future comes to, if it does so in time.
    pub(crate) async fn limit<T>(&self, future: impl Future<Output = T>) -> Result<T, String> {
        let limited = timeout_at(self.at, future).await;
        limited.map_err(|_| self.silence())
    }

    /// What is said of a broker that did not answer in time.
    pub(crate) fn silence(&self) -> String {
        let (broker, timeout) = (self.broker, humantime::format_duration(self.timeout));
        format!("{broker} did not answer within {timeout}")
    }
}

/// What a broker could not take now.
pub(crate) fn later(broker: &str, problem: impl std::fmt::Display) -> Refusal {
    Refusal::later(format!("{broker}: {problem}"))
}
