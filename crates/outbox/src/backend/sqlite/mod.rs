//! SQLite. One writer at a time: ids are in commit order, so sequencing is counting, and every
//! transaction of ours that writes begins IMMEDIATE, for one that turns from reader to writer fails
//! at once however long the busy timeout is.

mod dead_letters;
mod health;
mod operator;
mod relaxed;
mod schema;
mod together;

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::error::DatabaseError;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlSafeStr, Sqlite};

use super::decode::{process, registered, stored_message, survey};
use super::prefix::{query, statements};
use super::{
    Addressed, Advance, Answer, Backend, Claimed, Commit, Direction, Epoch, Head, Incarnation,
    Lease, Look, OwnConnection, OwnTransaction, PartitionId, Process, ReadLimit, Seq, Sequenced,
    Settlement, Store, Stride, Swept, Takeover, VERSION, host, sealed,
};
use crate::error::OutboxError;
use crate::message::OutboxMessageId;
use crate::queue::{Partitions, QueueName};

/// The time of the statement, in milliseconds.
const NOW: &str = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";
const INTEGER: &str = "INTEGER";

/// How often the file's version is looked at.
const WATCH: Duration = Duration::from_millis(20);

/// The most messages of one statement: it has room for 32 766 values.
const MAX_ROWS: usize = 5000;
/// Statements of up to so many rows stay prepared. Beyond, every other batch size would push one of the
/// caller's own statements out of the connection's cache.
const MAX_PREPARED_ROWS: usize = 100;

statements!(
    announce,
    bury,
    claim,
    claimed_dead_letters,
    cleanup_dead_letters,
    conclude_dead_letter,
    count_dead_letters,
    dead_letters,
    depart,
    enqueue,
    forget_processes,
    forget_records,
    hold,
    mark_requeued,
    partition_ids,
    pause_partition,
    pause_queue,
    peek,
    processes,
    queue_partitions,
    queues,
    read,
    record,
    records,
    register_partitions,
    register_processors,
    register_queue,
    release,
    renew,
    replay_dead_letters,
    roster,
    sequence,
    settle,
    stats,
    storage,
    survey,
    sweep,
    take_dead_letter,
    unsettled,
    vitals,
);

impl sealed::Sealed for Sqlite {}

impl Backend for Sqlite {
    type Statements = Statements;
    type Shared = together::Together;
    type Listener = Watch;
    const CARRIES_SIGNALS: bool = true;
    const EMBEDDED: bool = true;
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    async fn execute(
        connection: &mut SqliteConnection,
        statement: impl SqlSafeStr + Send,
    ) -> Answer<()> {
        sqlx::raw_sql(statement).execute(connection).await?;
        Ok(())
    }

    async fn migrate_up(store: &Store<Self>) -> Answer<()> {
        schema::migrate(store, Direction::Up).await
    }

    async fn migrate_down(store: &Store<Self>) -> Answer<()> {
        schema::migrate(store, Direction::Down).await
    }

    async fn schema_version(store: &Store<Self>) -> Answer<u32> {
        schema::version(&mut *store.pool.acquire().await?, &store.prefix).await
    }

    async fn register(
        store: &Store<Self>,
        queue: &QueueName,
        partitions: Partitions,
    ) -> Answer<Vec<PartitionId>> {
        if let Some(ids) = all_registered(store, queue, partitions).await? {
            return Ok(ids);
        }
        let sql = &store.sql;
        let mut transaction = Self::begin(store, None).await?;
        let count = i64::from(partitions.count());
        query!(sql.register_queue)
            .bind(queue.as_str())
            .bind(count)
            .execute(&mut *transaction)
            .await?;
        // A queue that somebody else registered meanwhile may have another count.
        registered(sql, &mut transaction, queue, partitions).await?;
        query!(sql.register_partitions)
            .bind(queue.as_str())
            .bind(count)
            .execute(&mut *transaction)
            .await?;
        query!(sql.register_processors)
            .bind(queue.as_str())
            .execute(&mut *transaction)
            .await?;
        let ids = registered(sql, &mut transaction, queue, partitions).await?;
        transaction.commit().await?;
        Ok(ids)
    }

    async fn enqueue(
        sql: &Statements,
        connection: &mut SqliteConnection,
        messages: &[Addressed<'_>],
    ) -> Answer<Vec<OutboxMessageId>> {
        if messages.len() <= MAX_ROWS {
            return insert(sql, connection, messages).await;
        }
        // All or nothing, as with one statement. One that was begun by hand cannot be begun again.
        if let Ok(mut transaction) = connection.begin().await {
            let ids = insert_all(sql, &mut transaction, messages).await?;
            transaction.commit().await?;
            return Ok(ids);
        }
        Self::execute(connection, "SAVEPOINT outbox_enqueue").await?;
        let ids = insert_all(sql, connection, messages).await;
        let end = match &ids {
            Ok(_) => "RELEASE outbox_enqueue",
            Err(_) => "ROLLBACK TO outbox_enqueue; RELEASE outbox_enqueue",
        };
        Self::execute(connection, end).await?;
        ids
    }

    async fn survey(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Look> {
        let mut own = OwnConnection::acquire(&store.workers).await?;
        let ids: Vec<i64> = partitions.iter().map(|id| id.0).collect();
        let began = Instant::now();
        let surveys = query!(store.sql.survey)
            .bind(json!(ids).to_string())
            .try_map(|row: SqliteRow| survey!(row))
            .fetch_all(&mut *own)
            .await?;
        let took = began.elapsed();
        own.give_back();
        Ok(Look { surveys, took })
    }

    async fn sequence(
        store: &Store<Self>,
        partitions: &[PartitionId],
        limit: u32,
        _: Stride,
    ) -> Answer<Vec<(PartitionId, Sequenced)>> {
        let mut transaction = relaxed::begin(store).await?;
        let mut sequenced = Vec::with_capacity(partitions.len());
        for partition_id in partitions {
            let row = query!(store.sql.sequence)
                .bind(partition_id.0)
                .bind(limit)
                .fetch_optional(&mut *transaction)
                .await?;
            let count: u32 = row.map_or(Ok(0), |row| row.try_get(0))?;
            let more = count == limit;
            sequenced.push((*partition_id, Sequenced::Done { count, more }));
        }
        transaction.commit().await?;
        Ok(sequenced)
    }

    async fn claim(
        store: &Store<Self>,
        partition_id: PartitionId,
        holder: &Incarnation,
        lease_millis: i64,
        takeover: Takeover,
    ) -> Answer<Option<Claimed>> {
        let mut own = OwnConnection::acquire_to_write(&store.workers).await?;
        // All rows although there is one: only the end of the statement is its commit.
        let rows = query!(store.sql.claim)
            .bind(partition_id.0)
            .bind(&holder.0)
            .bind(lease_millis)
            .bind(takeover.pulse().map(|pulse| pulse.epoch.0))
            .bind(takeover.pulse().map(|pulse| pulse.renewals))
            .bind(takeover == Takeover::Force)
            .fetch_all(&mut *own)
            .await?;
        own.give_back();
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let lease = Lease {
            partition_id,
            epoch: Epoch(row.try_get(0)?),
        };
        Ok(Some(Claimed {
            lease,
            abandoned: row.try_get(1)?,
        }))
    }

    async fn advance_alone(
        store: &Store<Self>,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
        commit: Commit,
    ) -> Answer<Advance> {
        together::advance(store, lease, settlement, limit, commit).await
    }

    async fn advance(
        sql: &Statements,
        connection: &mut SqliteConnection,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
    ) -> Answer<Advance> {
        if !hold(sql, connection, lease, settlement).await? {
            return Ok(Advance::Lost);
        }
        for dead in settlement
            .iter()
            .flat_map(|settlement| &settlement.dead_letters)
        {
            query!(sql.bury)
                .bind(dead.id.0)
                .bind(dead.seq.0)
                .bind(dead.attempts)
                .bind(&dead.reason)
                .execute(&mut *connection)
                .await?;
        }
        let rows = query!(sql.read)
            .bind(lease.partition_id.0)
            .bind(limit.messages)
            .bind(i64::try_from(limit.bytes).unwrap_or(i64::MAX))
            .bind(limit.despite_pause)
            .fetch_all(connection)
            .await?;
        let Some(first) = rows.first() else {
            return Ok(Advance::Lost);
        };
        let mut head = Head {
            cursor: Seq(first.try_get("processed_seq")?),
            attempts: first.try_get("attempts")?,
            paused: first.try_get("paused")?,
            session: None,
            messages: Vec::with_capacity(rows.len()),
        };
        for (place, row) in (head.cursor.0 + 1..).zip(&rows) {
            let Some(id) = row.try_get("id")? else {
                continue;
            };
            head.messages.push(stored_message!(row, id, place));
        }
        // The order is that of the ids, so a message that is gone shows at the end only.
        let last_seq: i64 = first.try_get("last_seq")?;
        let read = head.messages.len() as i64;
        let cut = head.paused && !limit.despite_pause || read > 0 || limit.messages == 0;
        if !cut && head.cursor.0 < last_seq {
            return Err(OutboxError::MissingMessage {
                partition_id: lease.partition_id.0,
                seq: head.cursor.0 + 1,
            });
        }
        Ok(Advance::Held(head))
    }

    async fn renew(store: &Store<Self>, leases: &[Lease]) -> Answer<Vec<PartitionId>> {
        let mut own = OwnConnection::acquire_to_write(&store.workers).await?;
        let renewed = query!(store.sql.renew)
            .bind(pairs(leases))
            .try_map(|row: SqliteRow| row.try_get(0).map(PartitionId))
            .fetch_all(&mut *own)
            .await?;
        own.give_back();
        Ok(renewed)
    }

    async fn release(store: &Store<Self>, lease: Lease) -> Answer<()> {
        let mut own = OwnConnection::acquire_to_write(&store.workers).await?;
        query!(store.sql.release)
            .bind(lease.partition_id.0)
            .bind(lease.epoch.0)
            .execute(&mut *own)
            .await?;
        own.give_back();
        Ok(())
    }

    async fn sweep(store: &Store<Self>, partition_id: PartitionId, limit: u32) -> Answer<Swept> {
        let mut own = OwnConnection::acquire_to_write(relaxed::lane(store).await?).await?;
        let swept = query!(store.sql.sweep)
            .bind(partition_id.0)
            .bind(limit)
            .execute(&mut *own)
            .await?
            .rows_affected();
        own.give_back();
        Ok(Swept {
            messages: swept,
            more: swept == u64::from(limit),
            busy: false,
        })
    }

    async fn announce(
        store: &Store<Self>,
        process: &Process,
        alive_millis: i64,
    ) -> Answer<Vec<Process>> {
        let mut transaction = Self::begin(store, None).await?;
        query!(store.sql.announce)
            .bind(&process.incarnation.0)
            .bind(json!(process.queues).to_string())
            .bind(host())
            .bind(VERSION)
            .execute(&mut *transaction)
            .await?;
        query!(store.sql.forget_processes)
            .bind(alive_millis)
            .execute(&mut *transaction)
            .await?;
        let rows = query!(store.sql.processes)
            .bind(alive_millis)
            .fetch_all(&mut *transaction)
            .await?;
        transaction.commit().await?;
        rows.iter().map(|row| process!(row)).collect()
    }

    async fn depart(store: &Store<Self>, incarnation: &Incarnation) -> Answer<()> {
        let mut own = OwnConnection::acquire_to_write(&store.workers).await?;
        query!(store.sql.depart)
            .bind(&incarnation.0)
            .execute(&mut *own)
            .await?;
        own.give_back();
        Ok(())
    }

    /// Every commit is a signal: see [`hear`](Self::hear).
    async fn signal(_: &Store<Self>) -> Answer<()> {
        Ok(())
    }

    async fn listen(store: &Store<Self>) -> Answer<Watch> {
        // Not from the user's pool: the version counts for the connection that asks.
        let options = store.pool.connect_options();
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let seen = data_version(&mut connection).await?;
        Ok(Watch { connection, seen })
    }

    async fn hear(watch: &mut Watch) -> Answer<()> {
        loop {
            tokio::time::sleep(WATCH).await;
            let version = data_version(&mut watch.connection).await?;
            if std::mem::replace(&mut watch.seen, version) != version {
                return Ok(());
            }
        }
    }

    async fn begin(store: &Store<Self>, _: Option<i64>) -> Answer<OwnTransaction<Self>> {
        OwnTransaction::begin(&store.workers, Self::BEGIN.into_sql_str()).await
    }

    /// There is no server: a statement ends with its connection.
    async fn end_session(_: &Store<Self>, _: i64, _: Duration) -> Answer<()> {
        Ok(())
    }

    fn is_passing(error: &dyn DatabaseError) -> bool {
        // BUSY, LOCKED, and the conditions of the file system that may pass: FULL, IOERR, and
        // PROTOCOL. The low byte is the primary code.
        let code = error
            .code()
            .and_then(|code| code.parse::<i32>().ok())
            .unwrap_or(0);
        matches!(code & 0xff, 5 | 6 | 10 | 13 | 15)
    }
}

/// A connection that watches the file's version, which every commit of another connection changes. It
/// costs next to nothing, unlike a look at the tables.
#[derive(Debug)]
pub struct Watch {
    connection: SqliteConnection,
    seen: i64,
}

async fn data_version(connection: &mut SqliteConnection) -> Answer<i64> {
    Ok(sqlx::query_scalar("PRAGMA data_version")
        .fetch_one(connection)
        .await?)
}

/// Settles or just renews; whether the lease is ours.
async fn hold(
    sql: &Statements,
    connection: &mut SqliteConnection,
    lease: Lease,
    settlement: Option<&Settlement>,
) -> Answer<bool> {
    let statement = if settlement.is_some() {
        &sql.settle
    } else {
        &sql.hold
    };
    let mut query = query!(statement)
        .bind(lease.partition_id.0)
        .bind(lease.epoch.0);
    if let Some(settlement) = settlement {
        query = query
            .bind(settlement.cursor.0)
            .bind(settlement.cursor_id.map(|id| id.0))
            .bind(settlement.attempts)
            .bind(settlement.last_error.as_deref());
    }
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

fn pairs(leases: &[Lease]) -> String {
    let pairs: Vec<_> = leases
        .iter()
        .map(|lease| (lease.partition_id.0, lease.epoch.0))
        .collect();
    json!(pairs).to_string()
}

async fn insert_all(
    sql: &Statements,
    connection: &mut SqliteConnection,
    messages: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    let mut ids = Vec::with_capacity(messages.len());
    for chunk in messages.chunks(MAX_ROWS) {
        ids.extend(insert(sql, connection, chunk).await?);
    }
    Ok(ids)
}

async fn insert(
    sql: &Statements,
    connection: &mut SqliteConnection,
    messages: &[Addressed<'_>],
) -> Answer<Vec<OutboxMessageId>> {
    let (insert, row) = sql.enqueue.rsplit_once("VALUES").unwrap_or_default();
    let rows = vec![row.trim(); messages.len()].join(", ");
    let statement = format!("{insert}VALUES {rows}");
    let mut query =
        sqlx::query(AssertSqlSafe(statement)).persistent(messages.len() <= MAX_PREPARED_ROWS);
    for (partition_id, message) in messages {
        query = query
            .bind(partition_id.0)
            .bind(message.payload_type())
            .bind(message.key())
            .bind(message.encoded_headers())
            .bind(message.payload());
    }
    let last = query.execute(connection).await?.last_insert_rowid();
    // There is one writer, so the ids of a statement have no holes.
    let first = last - i64::try_from(messages.len()).unwrap_or(i64::MAX) + 1;
    Ok((first..=last).map(OutboxMessageId).collect())
}

registered!(Sqlite, SqliteConnection, SqliteRow, i64);
