//! Who did what by hand, and why: kept beside the messages, so that it is there for whoever looks, on whatever
//! machine it was done.

use std::time::SystemTime;

use crate::backend::Backend;
use crate::error::OutboxError;
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};
use crate::pipeline::deliver::storable;

/// How many entries are kept.
pub(crate) const KEPT: i64 = 10_000;

/// Something that was done by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Its number: later ones have higher numbers.
    pub id: i64,
    /// When, by the database's clock.
    pub at: SystemTime,
    /// Who did it.
    pub actor: String,
    /// What was done: one word, for programs.
    pub action: String,
    /// To what.
    pub target: String,
    /// Why; empty if nobody said.
    pub reason: String,
}

/// Something that is written down.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// Who.
    pub actor: &'a str,
    /// Did what.
    pub action: &'a str,
    /// To what.
    pub target: &'a str,
    /// And why.
    pub reason: &'a str,
}

/// The audit log.
impl<DB: Backend> Outbox<DB> {
    /// Writes down that `actor` did something, in one word, to something, for a reason. The newest 10 000
    /// entries are kept. The outbox itself writes down nothing: whoever lets people act on it does.
    pub async fn audit(
        &self,
        actor: &str,
        action: &'static str,
        target: &str,
        reason: &str,
    ) -> Result<(), OutboxError> {
        let habits = self.engine.store.habits;
        let [actor, target, reason] =
            [actor, target, reason].map(|text| habits.writable(storable(text)));
        let entry = NewEntry {
            actor: &actor,
            action,
            target: &target,
            reason: &reason,
        };
        let record = DB::record(&self.engine.store, &entry);
        answer_within(OPERATOR_PATIENCE, record).await
    }

    /// What was written down before the entry of this number, or last, newest first.
    pub async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, OutboxError> {
        let before = before.unwrap_or(i64::MAX);
        let records = DB::records(&self.engine.store, before, limit);
        answer_within(OPERATOR_PATIENCE, records).await
    }

    /// How many bytes the outbox takes in the database: its tables, or the whole file on SQLite. MySQL answers
    /// what it last counted.
    pub async fn storage(&self) -> Result<u64, OutboxError> {
        let storage = DB::storage(&self.engine.store);
        let bytes = answer_within(OPERATOR_PATIENCE, storage).await?;
        self.engine.meters.takes_room(bytes);
        Ok(bytes)
    }
}
