//! MySQL and MariaDB, with the same statements. A producer writes a marker beside each message; the
//! sequencer looks for markers without locks, so nobody waits for a transaction that is still open; the
//! order is written down in runs.
//!
//! Three things shape what is here. Neither server can write two tables at once, and MySQL has no
//! RETURNING, so a verb is several statements. A statement that scans waits for rows it does not
//! want, so every write finds its rows by primary key. And a session's state belongs to the owner of
//! the pool: isolation is set for one transaction at a time.

mod advance;
mod dead_letters;
mod enqueue;
mod health;
mod operator;
mod schema;
mod sequence;
mod sweep;
mod text;

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Pool, Row as _, SqlSafeStr};

use super::decode::{queue_list, registered, survey};
use super::prefix::{query, statements};
use super::{
    Addressed, Advance, Answer, Backend, Claimed, Commit, Direction, Epoch, Habits, Incarnation,
    Lease, Look, ORPHAN_MILLIS, OwnConnection, OwnTransaction, PartitionId, Process, ReadLimit,
    Sequenced, Session, Settlement, Store, Stride, Swept, Takeover, VERSION, host, sealed,
};
use crate::error::OutboxError;
use crate::message::OutboxMessageId;
use crate::queue::{Partitions, QueueName};

/// The time of the statement, in milliseconds. From UTC, for an hour of local time comes twice a year.
const NOW: &str = "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(3)) \
                   DIV 1000)";
const INTEGER: &str = "SIGNED";

/// Two statements in one round trip: the first is for the next transaction only.
const BEGIN_OURS: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// How the session's own timeout survives a transaction of ours that has another one.
const REMEMBER_TIMEOUT: &str = "SET @outbox_wait_timeout = @@SESSION.wait_timeout";
const RESTORE_TIMEOUT: &str =
    "SET SESSION wait_timeout = @outbox_wait_timeout, @outbox_wait_timeout = NULL";

/// How often a step of sequencing is tried when the server breaks it off as a deadlock.
const SEQUENCE_TRIES: u32 = 2;

statements!(
    advance_partition,
    advance_vacuum,
    announce,
    bury,
    claim,
    claim_dead_letters,
    claimable,
    claimed_dead_letters,
    cleanup_dead_letters,
    conclude_dead_letter,
    count_dead_letters,
    cursor,
    dead_letters,
    depart,
    ended_dead_letters,
    enqueue,
    forget_process,
    forget_records,
    free_dead_letters,
    has_schema,
    head,
    held,
    highest,
    highest_of,
    hold,
    lock_partitions,
    lock_schema,
    lock_vacuum,
    mark,
    mark_requeued,
    messages,
    oldest_transaction,
    partition_ids,
    pause_partition,
    pause_queue,
    peek,
    present,
    processes,
    queue_partitions,
    queues,
    record,
    records,
    register_partitions,
    register_processors,
    register_queue,
    register_vacuum,
    release,
    remove,
    renew,
    roster,
    schema_version,
    sequence,
    settle,
    stats,
    still_held,
    storage,
    survey,
    sweep,
    take_dead_letter,
    unlist,
    unmark,
    unsettled,
    vitals,
    waits,
    write_run,
);

impl sealed::Sealed for MySql {}

impl Backend for MySql {
    type Statements = Statements;
    type Shared = ();
    type Listener = ();
    const CARRIES_SIGNALS: bool = false;
    const BEGIN: &'static str = "BEGIN";

    async fn execute(
        connection: &mut MySqlConnection,
        statement: impl SqlSafeStr + Send,
    ) -> Answer<()> {
        sqlx::raw_sql(statement).execute(connection).await?;
        Ok(())
    }

    async fn habits(pool: &Pool<Self>) -> Answer<Habits> {
        let level = health::isolation_level(&mut *pool.acquire().await?).await?;
        Ok(Habits {
            // A statement by itself would see what nobody has committed: all other levels will do.
            explicit_isolation: level.as_deref() == Some("READ-UNCOMMITTED"),
            ascii_only: false,
        })
    }

    async fn migrate_up(store: &Store<Self>) -> Answer<()> {
        schema::migrate(store, Direction::Up).await
    }

    async fn migrate_down(store: &Store<Self>) -> Answer<()> {
        schema::migrate(store, Direction::Down).await
    }

    async fn schema_version(store: &Store<Self>) -> Answer<u32> {
        schema::version(&mut *store.pool.acquire().await?, &store.sql).await
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
        let mut connection = schema::lock(store).await?;
        let count = partitions.count();
        query!(sql.register_queue)
            .bind(queue.as_str())
            .bind(count)
            .execute(&mut *connection)
            .await?;
        // A queue that somebody else registered meanwhile may have another count.
        registered(sql, &mut connection, queue, partitions).await?;
        query!(sql.register_partitions)
            .bind(queue.as_str())
            .bind(json!(vec![0; usize::from(count)]).to_string())
            .execute(&mut *connection)
            .await?;
        for statement in [&sql.register_processors, &sql.register_vacuum] {
            query!(statement)
                .bind(queue.as_str())
                .execute(&mut *connection)
                .await?;
        }
        registered(sql, &mut connection, queue, partitions).await
    }

    async fn enqueue(
        sql: &Statements,
        connection: &mut MySqlConnection,
        messages: &[Addressed<'_>],
    ) -> Answer<Vec<OutboxMessageId>> {
        enqueue::enqueue(sql, connection, messages).await
    }

    async fn survey(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Look> {
        let ids: Vec<i64> = partitions.iter().map(|id| id.0).collect();
        let mut session = Session::open(store).await?;
        let began = Instant::now();
        let surveys = query!(store.sql.survey)
            .bind(json!(ids).to_string())
            .try_map(|row: MySqlRow| survey!(row))
            .fetch_all(session.connection())
            .await?;
        let took = began.elapsed();
        session.end().await?;
        Ok(Look { surveys, took })
    }

    async fn sequence(
        store: &Store<Self>,
        partitions: &[PartitionId],
        limit: u32,
        _: Stride,
    ) -> Answer<Vec<(PartitionId, Sequenced)>> {
        let mut tries = 1;
        loop {
            match sequence::sequence(store, partitions, limit).await {
                Err(OutboxError::Database(error))
                    if tries < SEQUENCE_TRIES && is_deadlock(&error) =>
                {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    async fn claim(
        store: &Store<Self>,
        partition_id: PartitionId,
        holder: &Incarnation,
        lease_millis: i64,
        takeover: Takeover,
    ) -> Answer<Option<Claimed>> {
        let mut transaction = Self::begin(store, None).await?;
        let row = query!(store.sql.claimable)
            .bind(&holder.0)
            .bind(partition_id.0)
            .bind(&holder.0)
            .bind(takeover.pulse().map(|pulse| pulse.epoch.0))
            .bind(takeover.pulse().map(|pulse| pulse.renewals))
            .bind(takeover == Takeover::Force)
            .fetch_optional(&mut *transaction)
            .await?;
        let Some(row) = row else {
            transaction.roll_back().await?;
            return Ok(None);
        };
        let (epoch, abandoned): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
        query!(store.sql.claim)
            .bind(abandoned)
            .bind(&holder.0)
            .bind(lease_millis)
            .bind(partition_id.0)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let lease = Lease {
            partition_id,
            epoch: Epoch(epoch + 1),
        };
        Ok(Some(Claimed { lease, abandoned }))
    }

    async fn advance_alone(
        store: &Store<Self>,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
        _: Commit,
    ) -> Answer<Advance> {
        let sql = &store.sql;
        let buries = settlement.is_some_and(|settlement| !settlement.dead_letters.is_empty());
        if !buries {
            // A write and a look, each checked against the epoch: no need to hold them together.
            let mut session = Session::open(store).await?;
            let connection = session.connection();
            let advance = Self::advance(sql, connection, lease, settlement, limit).await?;
            session.end().await?;
            return Ok(advance);
        }
        let mut transaction = Self::begin(store, None).await?;
        let advance = Self::advance(sql, &mut transaction, lease, settlement, limit).await?;
        transaction.commit().await?;
        Ok(advance)
    }

    async fn advance(
        sql: &Statements,
        connection: &mut MySqlConnection,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
    ) -> Answer<Advance> {
        advance::advance(sql, connection, lease, settlement, limit).await
    }

    async fn renew(store: &Store<Self>, leases: &[Lease]) -> Answer<Vec<PartitionId>> {
        let mut transaction = Self::begin(store, None).await?;
        let mut held: Vec<i64> = query!(store.sql.held)
            .bind(pairs_of(leases))
            .try_map(|row: MySqlRow| row.try_get(0))
            .fetch_all(&mut *transaction)
            .await?;
        query!(store.sql.renew)
            .bind(json!(held).to_string())
            .execute(&mut *transaction)
            .await?;
        if held.len() < leases.len() {
            held = query!(store.sql.still_held)
                .bind(pairs_of(leases))
                .try_map(|row: MySqlRow| row.try_get(0))
                .fetch_all(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(held.into_iter().map(PartitionId).collect())
    }

    async fn release(store: &Store<Self>, lease: Lease) -> Answer<()> {
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        query!(store.sql.release)
            .bind(lease.partition_id.0)
            .bind(lease.epoch.0)
            .execute(&mut *connection)
            .await?;
        connection.give_back();
        Ok(())
    }

    async fn sweep(store: &Store<Self>, partition_id: PartitionId, limit: u32) -> Answer<Swept> {
        sweep::sweep(store, partition_id, limit).await
    }

    async fn announce(
        store: &Store<Self>,
        process: &Process,
        alive_millis: i64,
    ) -> Answer<Vec<Process>> {
        let queues = json!(process.queues).to_string();
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        query!(store.sql.announce)
            .bind(&process.incarnation.0)
            .bind(&queues)
            .bind(host())
            .bind(VERSION)
            .bind(&queues)
            .execute(&mut *connection)
            .await?;
        let rows = query!(store.sql.processes)
            .bind(alive_millis)
            .bind(alive_millis)
            .bind(alive_millis)
            .fetch_all(&mut *connection)
            .await?;
        let mut alive = Vec::with_capacity(rows.len());
        for row in &rows {
            let incarnation: String = row.try_get("incarnation")?;
            if row.try_get("forgotten")? {
                // One by one: a statement that looks for them would lock those that are alive.
                query!(store.sql.forget_process)
                    .bind(&incarnation)
                    .bind(alive_millis)
                    .execute(&mut *connection)
                    .await?;
            } else if row.try_get("alive")? {
                let queues: String = row.try_get("queues")?;
                alive.push(Process {
                    incarnation: Incarnation(incarnation),
                    queues: queue_list(&queues),
                });
            }
        }
        connection.give_back();
        Ok(alive)
    }

    async fn depart(store: &Store<Self>, incarnation: &Incarnation) -> Answer<()> {
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        query!(store.sql.depart)
            .bind(&incarnation.0)
            .execute(&mut *connection)
            .await?;
        connection.give_back();
        Ok(())
    }

    async fn signal(_: &Store<Self>) -> Answer<()> {
        Ok(())
    }

    async fn listen(_: &Store<Self>) -> Answer<()> {
        Ok(())
    }

    async fn hear(_: &mut ()) -> Answer<()> {
        std::future::pending().await
    }

    async fn begin(
        store: &Store<Self>,
        orphan_millis: Option<i64>,
    ) -> Answer<OwnTransaction<Self>> {
        let millis = orphan_millis.unwrap_or(ORPHAN_MILLIS);
        // Both servers know such a timeout for sessions only, in whole seconds, so it is set before
        // and put back after. Should that fail, the connection is closed.
        let seconds = millis.div_euclid(1000).saturating_add(1);
        let begin = format!("{REMEMBER_TIMEOUT}, SESSION wait_timeout = {seconds}; {BEGIN_OURS}");
        let begin = AssertSqlSafe(begin).into_sql_str();
        let transaction = OwnTransaction::begin(&store.workers, begin).await?;
        Ok(transaction.restoring(|connection| {
            let restored = sqlx::raw_sql(RESTORE_TIMEOUT).execute(connection);
            Box::pin(async { restored.await.map(drop) })
        }))
    }

    async fn end_session(store: &Store<Self>, session: i64, open_for: Duration) -> Answer<()> {
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        // One that does nothing ends with its connection. And a server that was started since gives the same
        // numbers to others; it counts its seconds generously.
        let at_work = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE id = ? AND command <> 'Sleep' AND db = DATABASE()";
        let at_work: i64 = sqlx::query_scalar(at_work)
            .bind(session)
            .fetch_one(&mut *connection)
            .await?;
        let uptime: String = sqlx::query("SHOW GLOBAL STATUS LIKE 'Uptime'")
            .fetch_one(&mut *connection)
            .await?
            .try_get(1)?;
        let same = uptime.parse::<u64>().unwrap_or(0) > open_for.as_secs() + 2;
        if at_work == 1 && same {
            let kill = AssertSqlSafe(format!("KILL {session}"));
            match Self::execute(&mut connection, kill).await {
                // It has gone by itself.
                Err(OutboxError::Database(error)) if number_of(&error) == Some(1094) => {}
                ended => ended?,
            }
        }
        connection.give_back();
        Ok(())
    }

    async fn end_waits(store: &Store<Self>, waited: Duration) -> Answer<()> {
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        let waits: Vec<i64> = query!(store.sql.waits)
            .bind(i64::try_from(waited.as_secs()).unwrap_or(i64::MAX))
            .try_map(|row: MySqlRow| row.try_get(0))
            .fetch_all(&mut *connection)
            .await?;
        for session in waits {
            let end = AssertSqlSafe(format!("KILL QUERY {session}"));
            match Self::execute(&mut connection, end).await {
                // It has gone by itself.
                Err(OutboxError::Database(error)) if number_of(&error) == Some(1094) => {}
                ended => ended?,
            }
        }
        connection.give_back();
        Ok(())
    }

    fn is_passing(error: &dyn DatabaseError) -> bool {
        let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() else {
            return false;
        };
        matches!(
            error.number(),
            // Deadlock, lock wait timeout, and MariaDB's "record has changed since last read".
            1213 | 1205 | 1020
            // Too many connections, of all and of this user; host blocked; handshake failed.
            | 1040 | 1203 | 1226 | 1129 | 1043
            // Shutdown; killed query, killed connection, statement and idle timeouts.
            | 1053 | 1317 | 1927 | 1969 | 3024 | 4031
            // Lost connections as proxies report them, and packets cut short.
            | 2006 | 2013 | 1158
                ..=1161 | 1184
            // Read-only: a server that was just demoted, or has not been promoted yet.
            | 1290 | 1836
            // A cluster's node that is not ready.
            | 1047
            // Out of memory, of threads, of disk, of locks; nowait; metadata changed under a statement.
            | 1037 | 1041 | 1135 | 1021 | 1114 | 1206 | 3572 | 1412 | 1615
        )
    }
}

fn number_of(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

fn is_deadlock(error: &sqlx::Error) -> bool {
    matches!(number_of(error), Some(1213 | 1205))
}

registered!(MySql, MySqlConnection, MySqlRow, i32);

/// In the order of their partitions, so that two who write several rows lock them in one order.
fn pairs_of(leases: &[Lease]) -> String {
    let mut pairs: Vec<_> = leases
        .iter()
        .map(|lease| (lease.partition_id.0, lease.epoch.0))
        .collect();
    pairs.sort_unstable();
    json!(pairs).to_string()
}
