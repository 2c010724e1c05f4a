//! How long a worker waits for the database to answer. A connection can be cut off without a word, and
//! would then never answer; a worker that waits for it would be lost. A statement that is only slow
//! gets more time each time, up to what a lease lasts: work must go on that soon after a lost contact.

use std::future::Future;
use std::time::Duration;

use crate::error::OutboxError;

const FIRST: Duration = Duration::from_secs(5);

/// A worker's patience with the database.
#[derive(Debug)]
pub(crate) struct Patience {
    longest: Duration,
    timeouts: u32,
}

impl Patience {
    /// At most `longest`, the lease, unless that is even shorter than what a busy server needs.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest: longest.max(FIRST),
            timeouts: 0,
        }
    }

    fn limit(&self) -> Duration {
        FIRST
            .saturating_mul(1 << self.timeouts.min(20))
            .min(self.longest)
    }

    /// Waits for an answer, twice as long after each time that none came.
    pub(crate) async fn hear<T>(
        &mut self,
        verb: impl Future<Output = Result<T, OutboxError>>,
    ) -> Result<T, OutboxError> {
        let answer = answer_within(self.limit(), verb).await;
        self.timeouts = match answer {
            Err(OutboxError::NoAnswer { .. }) => self.timeouts.saturating_add(1),
            _ => 0,
        };
        answer
    }
}

/// Waits for an answer for so long. A verb that is dropped then closes its connection.
pub(crate) async fn answer_within<T>(
    limit: Duration,
    verb: impl Future<Output = Result<T, OutboxError>>,
) -> Result<T, OutboxError> {
    match tokio::time::timeout(limit, verb).await {
        Ok(answer) => answer,
        Err(_) => Err(OutboxError::NoAnswer { after: limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_grows_while_no_answer_comes_and_starts_anew_after_one() {
        let mut patience = Patience::new(Duration::from_secs(30));
        let mut waits = Vec::new();
        for _ in 0..5 {
            match patience.hear(std::future::pending::<Result<(), _>>()).await {
                Err(OutboxError::NoAnswer { after }) => waits.push(after.as_secs()),
                answer => panic!("{answer:?}"),
            }
        }
        assert_eq!(waits, [5, 10, 20, 30, 30]);
        patience.hear(async { Ok(()) }).await.unwrap();
        assert_eq!(patience.limit(), FIRST);
        assert_eq!(Patience::new(Duration::from_millis(1)).limit(), FIRST);
    }
}
