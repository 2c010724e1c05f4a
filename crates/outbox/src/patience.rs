//! How long a worker waits for the database to answer. A connection can be cut off without a word, and
//! would then never answer; a worker that waits for it would be lost. A statement that is only slow
//! gets more time each time, and keeps it where the work takes long by nature. When contact with the database is found again nobody waits any longer for
//! an answer from before.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::OutboxError;

/// What everybody waits at least.
pub(crate) const FIRST: Duration = Duration::from_secs(2);
/// What a worker waits at most.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);
/// What the scout waits, every time: it tells all others that contact was found again.
pub(crate) const SCOUTS_LONGEST: Duration = FIRST;
/// How long an operator's call waits for its answer.
pub(crate) const OPERATOR_PATIENCE: Duration = Duration::from_secs(30);

/// A worker's patience with the database.
#[derive(Debug)]
pub(crate) struct Patience {
    longest: Duration,
    /// What it waits the next time.
    limit: Duration,
    /// Whether what it asks for may take long by nature.
    long_work: bool,
    /// Counts how often contact was found again.
    contact: watch::Receiver<u64>,
}

impl Patience {
    pub(crate) fn new(longest: Duration, contact: watch::Receiver<u64>) -> Self {
        Self {
            longest,
            limit: FIRST,
            long_work: false,
            contact,
        }
    }

    /// What took long will take as long again: there is much to do, and the next time there is as much.
    pub(crate) fn with_long_work(mut self) -> Self {
        self.long_work = true;
        self
    }

    /// Waits as long as it takes for work that has failed so often, whoever tried it: what else was
    /// answered since says nothing about it.
    pub(crate) fn after(&mut self, failures: u32) -> &mut Self {
        let longer = FIRST.saturating_mul(1 << failures.min(20));
        self.limit = self.limit.max(longer).min(self.longest);
        self
    }

    /// Waits for an answer, twice as long after each time that none came.
    pub(crate) async fn hear<T>(
        &mut self,
        verb: impl Future<Output = Result<T, OutboxError>>,
    ) -> Result<T, OutboxError> {
        let verb = Box::pin(verb);
        let asked = Instant::now();
        let answer = answer_in_contact(self.limit, &mut self.contact, verb).await;
        let next = match answer {
            Err(OutboxError::NoAnswer { .. }) => self.limit * 2,
            Ok(_) if self.long_work => asked.elapsed() * 2,
            _ => FIRST,
        };
        self.limit = next.clamp(FIRST, self.longest);
        answer
    }
}

/// Waits for an answer for so long, or until contact with the database was found again meanwhile: an
/// answer from before will not come. What was asked just now may be answered all the same.
pub(crate) async fn answer_in_contact<T>(
    limit: Duration,
    contact: &mut watch::Receiver<u64>,
    verb: impl Future<Output = Result<T, OutboxError>>,
) -> Result<T, OutboxError> {
    let asked = Instant::now();
    contact.mark_unchanged();
    let found_again = async {
        while contact.changed().await.is_ok() {
            if asked.elapsed() >= FIRST {
                return;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        answer = answer_within(limit, verb) => answer,
        () = found_again => Err(OutboxError::NoAnswer { after: asked.elapsed() }),
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
        let contact = watch::Sender::new(0);
        let mut patience = Patience::new(LONGEST, contact.subscribe());
        let mut waits = Vec::new();
        for _ in 0..6 {
            match patience.hear(std::future::pending::<Result<(), _>>()).await {
                Err(OutboxError::NoAnswer { after }) => waits.push(after.as_secs()),
                answer => panic!("{answer:?}"),
            }
        }
        assert_eq!(waits, [2, 4, 8, 16, 30, 30]);
        patience.hear(async { Ok(()) }).await.unwrap();
        assert_eq!(patience.limit, FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_is_waited_for_the_next_time_too() {
        let contact = watch::Sender::new(0);
        let mut patience = Patience::new(LONGEST, contact.subscribe()).with_long_work();
        for (seconds, heard) in [(5, [false, false, true]), (7, [true; 3]), (13, [true; 3])] {
            for heard in heard {
                let slow = async {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(())
                };
                assert_eq!(patience.hear(slow).await.is_ok(), heard, "{seconds} s");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn neither_an_error_that_came_late_nor_short_work_is_waited_for_longer() {
        let contact = watch::Sender::new(0);
        let patience = || Patience::new(LONGEST, contact.subscribe());
        let full = || Err(sqlx::Error::PoolTimedOut.into());
        for (mut patience, answer) in [
            (patience(), Ok(())),
            (patience(), full()),
            (patience().with_long_work(), full()),
        ] {
            let late = async {
                tokio::time::sleep(FIRST - Duration::from_millis(1)).await;
                answer
            };
            let _ = patience.hear(late).await;
            assert_eq!(patience.limit, FIRST);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_elsewhere_is_waited_for_as_if_it_had_failed_here() {
        let contact = watch::Sender::new(0);
        let mut patience = Patience::new(LONGEST, contact.subscribe());
        for (failures, seconds) in [(0, 2), (1, 4), (2, 8), (u32::MAX, 30)] {
            let never = std::future::pending::<Result<(), _>>();
            match patience.after(failures).hear(never).await {
                Err(OutboxError::NoAnswer { after }) => assert_eq!(after.as_secs(), seconds),
                answer => panic!("{answer:?}"),
            }
            patience.hear(async { Ok(()) }).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_contact_ends_the_wait_for_an_old_answer() {
        let contact = watch::Sender::new(0);
        let started = Instant::now();
        let never = std::future::pending::<Result<(), _>>();
        let mut heard = contact.subscribe();
        let waited = answer_in_contact(LONGEST, &mut heard, never);
        let (answer, ()) = tokio::join!(waited, async {
            for seconds in [1, 3] {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                contact.send_modify(|contacts| *contacts += 1);
            }
        });
        assert!(matches!(answer, Err(OutboxError::NoAnswer { .. })));
        assert_eq!(started.elapsed(), Duration::from_secs(4), "not the first");
    }
}
