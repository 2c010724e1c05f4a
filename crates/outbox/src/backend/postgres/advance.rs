//! The step of whoever holds a lease: settles, renews and reads what comes next, in one statement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::{Statements, query};
use crate::backend::decode::{cut_at_a_hole, numbered_message};
use crate::backend::{
    Advance, Answer, Burial, Commit, Head, Lease, PartitionId, ReadLimit, Seq, Settlement,
};
use crate::engine::lock;
use crate::error::OutboxError;

/// Where the rows of our leases were when we last wrote them.
///
/// A row that is updated at every step has as many versions as there were steps since the oldest open
/// transaction began, and to look it up by its key is to walk over all of them. Its place leads to the
/// newest at once, unless somebody else has written it since: then the key does.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: Mutex<HashMap<PartitionId, String>>,
    statement: OnceLock<Arc<str>>,
}

impl Places {
    fn of(&self, partition_id: PartitionId) -> Option<String> {
        lock(&self.known).get(&partition_id).cloned()
    }

    fn note(&self, partition_id: PartitionId, place: String) {
        lock(&self.known).insert(partition_id, place);
    }

    /// The statement that finds the row by its place.
    fn statement(&self, sql: &Statements) -> &Arc<str> {
        let by_place = || {
            let text = sql.advance.replace("/* at */", "ctid = $10::text::tid AND");
            text.into()
        };
        self.statement.get_or_init(by_place)
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) lease: Lease,
    pub(super) settlement: Option<&'a Settlement>,
    pub(super) limit: ReadLimit,
    pub(super) commit: Commit,
}

impl Step<'_> {
    /// Takes it where the row was, or else where it is.
    pub(super) async fn take_at(
        self,
        places: &Places,
        sql: &Statements,
        connection: &mut PgConnection,
    ) -> Answer<Advance> {
        let partition_id = self.lease.partition_id;
        let mut found = None;
        if let Some(place) = places.of(partition_id) {
            let statement = places.statement(sql);
            found = self.run(statement, Some(place), connection).await?;
        }
        if found.is_none() {
            found = self.run(&sql.advance, None, connection).await?;
        }
        Ok(found.map_or(Advance::Lost, |(head, place)| {
            places.note(partition_id, place);
            Advance::Held(head)
        }))
    }

    pub(super) async fn take(
        self,
        sql: &Statements,
        connection: &mut PgConnection,
    ) -> Answer<Advance> {
        let found = self.run(&sql.advance, None, connection).await?;
        Ok(found.map_or(Advance::Lost, |(head, _)| Advance::Held(head)))
    }

    async fn run(
        self,
        statement: &Arc<str>,
        place: Option<String>,
        connection: &mut PgConnection,
    ) -> Answer<Option<(Head, String)>> {
        let Self {
            lease,
            settlement,
            limit,
            commit,
        } = self;
        let mut query = sqlx::query(AssertSqlSafe(Arc::clone(statement)))
            .bind(lease.partition_id.0)
            .bind(lease.epoch.0)
            .bind(settlement.map(|settlement| settlement.cursor.0))
            .bind(settlement.map(|settlement| i64::from(settlement.attempts)))
            .bind(settlement.and_then(|settlement| settlement.last_error.as_deref()))
            .bind(i64::from(limit.messages))
            .bind(i64::try_from(limit.bytes).unwrap_or(i64::MAX))
            .bind(limit.despite_pause)
            .bind(commit == Commit::Relaxed);
        if let Some(place) = place {
            query = query.bind(place);
        }
        head(&query.fetch_all(connection).await?, lease)
    }
}

/// One row per message, or one without; none when the lease is gone. And where its row is now.
fn head(rows: &[PgRow], lease: Lease) -> Answer<Option<(Head, String)>> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let mut head = Head {
        cursor: Seq(first.try_get(0)?),
        attempts: u32::try_from(first.try_get::<i64, _>(1)?).unwrap_or(u32::MAX),
        paused: first.try_get(2)?,
        session: Some(first.try_get(3)?),
        messages: Vec::with_capacity(rows.len()),
    };
    for row in rows {
        let Some(seq) = row.try_get(4)? else {
            continue;
        };
        let Some(id) = row.try_get(5)? else {
            return Err(OutboxError::MissingMessage {
                partition_id: lease.partition_id.0,
                seq,
            });
        };
        head.messages.push(numbered_message!(row, 6, id, seq));
    }
    // The statement does not sort what it sends, payloads and all, a second time.
    head.messages.sort_unstable_by_key(|message| message.seq);
    cut_at_a_hole(
        lease.partition_id,
        head.cursor,
        &mut head.messages,
        |message| message.seq,
    );
    Ok(Some((head, first.try_get(11)?)))
}

pub(super) async fn bury(
    sql: &Statements,
    connection: &mut PgConnection,
    dead: &[Burial],
) -> Answer<()> {
    if dead.is_empty() {
        return Ok(());
    }
    let attempts = |dead: &Burial| i64::from(dead.attempts);
    query!(sql.bury)
        .bind(dead.iter().map(|dead| dead.id.0).collect::<Vec<_>>())
        .bind(dead.iter().map(|dead| dead.seq.0).collect::<Vec<_>>())
        .bind(dead.iter().map(attempts).collect::<Vec<_>>())
        .bind(dead.iter().map(|dead| &*dead.reason).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
