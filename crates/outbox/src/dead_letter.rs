//! Rejected messages: kept with payload, reason and history until an operator has decided.
//!
//! ```text
//!               replay                 resolve
//!   pending ─────────────▶ reprocessing ─────────▶ resolved
//!     │  ▲  ▲                  │  │                   ▲
//!     │  │  └──── reject ──────┘  │                   │
//!     │  └─ claim ran out ────────┘                   │
//!     ├────────────── requeue ────────────────────────┘
//!     └────────────── discard ──────▶ discarded
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::backend::{Backend, Conclusion, PartitionId};
use crate::engine::millis;
use crate::error::OutboxError;
use crate::message::{EnqueueMessage, OutboxMessageId};
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};
use crate::pipeline::deliver::storable;

/// Where a dead letter is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadLetterStatus {
    /// Waits for somebody to decide.
    Pending,
    /// Somebody is trying it again, until a deadline.
    Reprocessing,
    /// It was handled after all, or requeued.
    Resolved,
    /// Nobody will handle it.
    Discarded,
}

impl DeadLetterStatus {
    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Reprocessing => "reprocessing",
            Self::Resolved => "resolved",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for DeadLetterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeadLetterStatus {
    type Err = OutboxError;

    fn from_str(text: &str) -> Result<Self, OutboxError> {
        [
            Self::Pending,
            Self::Reprocessing,
            Self::Resolved,
            Self::Discarded,
        ]
        .into_iter()
        .find(|status| status.as_str() == text)
        .ok_or_else(|| {
            let allowed = "pending, reprocessing, resolved or discarded";
            OutboxError::config("status", text, allowed)
        })
    }
}

/// A rejected message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number among the dead letters.
    pub id: i64,
    /// The queue it was enqueued to.
    pub queue: String,
    /// The partition of the queue, counted from 0.
    pub partition: u32,
    /// The database's number of the partition.
    pub partition_id: i64,
    /// Its place in the partition.
    pub seq: i64,
    /// The message's identity.
    pub message_id: OutboxMessageId,
    /// What was enqueued.
    pub payload: Vec<u8>,
    /// What that is.
    pub payload_type: String,
    /// The key it was enqueued with.
    pub key: Option<String>,
    /// The headers it was enqueued with.
    pub headers: BTreeMap<String, String>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When it was rejected.
    pub failed_at: SystemTime,
    /// Why it was rejected, the last time.
    pub last_error: String,
    /// How often it was tried.
    pub attempts: u32,
    /// Where it is on its way.
    pub status: DeadLetterStatus,
    /// Until when somebody may try it again.
    pub deadline: Option<SystemTime>,
    /// When it was resolved or discarded.
    pub completed_at: Option<SystemTime>,
    /// The message it was requeued as.
    pub requeued_as: Option<OutboxMessageId>,
    /// The proof of a claim, which resolving and rejecting ask for: only
    /// [`dead_letter_replay`](crate::Outbox::dead_letter_replay) tells it.
    pub claim_token: Option<String>,
}

/// Which dead letters to look at. Everything that is not set lets all through.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct DeadLetterFilter {
    pub(crate) queue: Option<String>,
    pub(crate) partition: Option<u32>,
    pub(crate) payload_type: Option<String>,
    pub(crate) status: Option<DeadLetterStatus>,
    pub(crate) ids: RangeInclusive<i64>,
    pub(crate) limit: u32,
    pub(crate) payloads: bool,
}

impl Default for DeadLetterFilter {
    fn default() -> Self {
        Self {
            queue: None,
            partition: None,
            payload_type: None,
            status: None,
            ids: i64::MIN..=i64::MAX,
            limit: 100,
            payloads: true,
        }
    }
}

impl DeadLetterFilter {
    /// The newest 100 of all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those of this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Only those of this partition of their queue, counted from 0.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Only those of this payload type.
    pub fn payload_type(mut self, payload_type: impl Into<String>) -> Self {
        self.payload_type = Some(payload_type.into());
        self
    }

    /// Only those with this status.
    pub fn status(mut self, status: DeadLetterStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Only those with these numbers: `7..=7` is one, `i64::MIN..=6` are those before it.
    pub fn ids(mut self, ids: RangeInclusive<i64>) -> Self {
        self.ids = ids;
        self
    }

    /// Lists them without their payloads, which are empty then: for those who only want to see what there is.
    pub fn without_payloads(mut self) -> Self {
        self.payloads = false;
        self
    }

    /// At most so many. Default 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }
}

/// Dead letters.
impl<DB: Backend> Outbox<DB> {
    /// The dead letters a filter lets through, newest first.
    pub async fn dead_letter_list(
        &self,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetter>, OutboxError> {
        let letters = DB::dead_letters(&self.engine.store, filter);
        let mut letters = answer_within(OPERATOR_PATIENCE, letters).await?;
        for letter in &mut letters {
            // Whoever lists has claimed nothing.
            letter.claim_token = None;
        }
        Ok(letters)
    }

    /// How many dead letters a filter lets through, whatever its limit.
    pub async fn dead_letter_count(&self, filter: &DeadLetterFilter) -> Result<u64, OutboxError> {
        let count = DB::count_dead_letters(&self.engine.store, filter);
        answer_within(OPERATOR_PATIENCE, count).await
    }

    /// Claims dead letters to try them again by hand, oldest first: pending ones, and those whose
    /// claim has run out. Nobody else gets them before `deadline` has passed. End each with
    /// [`dead_letter_resolve`](Self::dead_letter_resolve) or
    /// [`dead_letter_reject`](Self::dead_letter_reject).
    pub async fn dead_letter_replay(
        &self,
        filter: &DeadLetterFilter,
        deadline: Duration,
    ) -> Result<Vec<DeadLetter>, OutboxError> {
        let token = uuid::Uuid::new_v4().to_string();
        let (store, millis) = (&self.engine.store, millis(deadline));
        let replay = DB::replay_dead_letters(store, filter, &token, millis);
        answer_within(OPERATOR_PATIENCE, replay).await
    }

    /// Says that claimed dead letters were handled. Answers how many: those whose claim ran out and
    /// went to somebody else are not yours to resolve.
    pub async fn dead_letter_resolve(&self, claimed: &[DeadLetter]) -> Result<u64, OutboxError> {
        self.conclude(claimed, Conclusion::Resolved).await
    }

    /// Says that claimed dead letters failed again: they are pending once more, with one attempt
    /// more and this reason. Answers how many.
    pub async fn dead_letter_reject(
        &self,
        claimed: &[DeadLetter],
        reason: &str,
    ) -> Result<u64, OutboxError> {
        let reason = self.engine.store.habits.writable(storable(reason));
        self.conclude(claimed, Conclusion::Rejected(reason)).await
    }

    /// Says that nobody will handle these. Pending ones, those whose claim has run out, or claimed by
    /// the caller. Answers how many.
    pub async fn dead_letter_discard(&self, letters: &[DeadLetter]) -> Result<u64, OutboxError> {
        self.conclude(letters, Conclusion::Discarded).await
    }

    async fn conclude(
        &self,
        letters: &[DeadLetter],
        conclusion: Conclusion,
    ) -> Result<u64, OutboxError> {
        let claims: Vec<_> = letters
            .iter()
            .map(|letter| (letter.id, letter.claim_token.as_deref()))
            .collect();
        let conclude = DB::conclude_dead_letters(&self.engine.store, &claims, &conclusion);
        answer_within(OPERATOR_PATIENCE, conclude).await
    }

    /// Deletes resolved and discarded dead letters, at most as many as the filter's limit. Answers
    /// how many.
    pub async fn dead_letter_cleanup(&self, filter: &DeadLetterFilter) -> Result<u64, OutboxError> {
        let cleanup = DB::cleanup_dead_letters(&self.engine.store, filter);
        answer_within(OPERATOR_PATIENCE, cleanup).await
    }

    /// Puts a dead letter that is pending, or whose claim has run out, back into its queue as a new
    /// message, behind everything that is there, and resolves it. The message says in its headers where it comes from:
    /// `outbox-requeued-from` (the dead letter), `outbox-attempts` and `outbox-last-error`.
    pub async fn dead_letter_requeue(&self, id: i64) -> Result<OutboxMessageId, OutboxError> {
        answer_within(OPERATOR_PATIENCE, self.requeue(id)).await
    }

    async fn requeue(&self, id: i64) -> Result<OutboxMessageId, OutboxError> {
        let store = &self.engine.store;
        let mut transaction = DB::begin(store, None).await?;
        let Some(letter) = DB::take_dead_letter(&store.sql, &mut transaction, id).await? else {
            transaction.roll_back().await?;
            return Err(OutboxError::DeadLetterNotPending(id));
        };
        let message = EnqueueMessage::requeued(&letter);
        let addressed = [(PartitionId(letter.partition_id), &message)];
        let ids = DB::enqueue(&store.sql, &mut transaction, &addressed).await?;
        let message_id = *ids.first().ok_or(sqlx::Error::RowNotFound)?;
        DB::mark_requeued(&store.sql, &mut transaction, id, message_id).await?;
        transaction.commit().await?;
        let partition_id = PartitionId(letter.partition_id);
        if let Some(queue) = self.engine.queue_of.get(&partition_id) {
            queue.meters.enqueued.increment(1);
        }
        self.engine.mark([partition_id]);
        Ok(message_id)
    }
}
