//! How long a worker waits for the database to answer. A connection can be cut off without a word, and
//! would then never answer; a worker that waits for it would be lost. A statement that is only slow
//! gets more time each time, so that it comes through in the end.

use std::future::Future;
use std::time::Duration;

use crate::error::OutboxError;

const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_mins(5);

/// A worker's patience with the database.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    timeouts: u32,
}

impl Patience {
    fn limit(&self) -> Duration {
        FIRST
            .saturating_mul(1 << self.timeouts.min(20))
            .min(LONGEST)
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
        let mut patience = Patience::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            match patience.hear(std::future::pending::<Result<(), _>>()).await {
                Err(OutboxError::NoAnswer { after }) => waits.push(after.as_secs()),
                answer => panic!("{answer:?}"),
            }
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        patience.hear(async { Ok(()) }).await.unwrap();
        assert_eq!(patience.limit(), FIRST);
    }
}
