//! PostgreSQL. What has committed since the last look is the difference of two snapshots, so nobody
//! waits for a transaction that is still open; the order is written down in runs.

mod advance;
mod dead_letters;
mod health;
mod looks;
mod operator;
mod schema;
mod signals;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Pool, Postgres, Row as _, SqlSafeStr};
use tokio::time::Instant;

use super::decode::{process, registered, survey};
use super::prefix::{query, statements};
use super::{
    Addressed, Advance, Answer, Backend, Claimed, Commit, Direction, Epoch, Habits, Incarnation,
    Lease, Look, ORPHAN_MILLIS, OwnConnection, OwnTransaction, PartitionId, Process, ReadLimit,
    Reclaimed, Sequenced, Session, Settlement, Store, Stride, Survey, Swept, Takeover, VERSION,
    host, sealed,
};
use crate::engine::lock;
use crate::error::OutboxError;
use crate::message::OutboxMessageId;
use crate::queue::{Partitions, QueueName};
use advance::{Places, Step, bury};
use looks::Looks;
use signals::Ear;

/// The time of the moment, in milliseconds; not that of the transaction's start.
const NOW: &str = "(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000)::bigint";
const INTEGER: &str = "BIGINT";

/// The most ids in a run: as many as fit into a page beside others without being packed, which would
/// cost more than it saves.
const LONGEST_RUN: i32 = 200;
/// The smallest pool that can do without a connection for as long as a VACUUM takes.
const RECLAIMING_POOL: u32 = 4;
/// How many batches a step takes at most, of all its partitions together: what costs is to find what is
/// new, not to take it.
const BATCHES_AT_ONCE: usize = 64;
/// How many times more it takes where it goes on with what it has found to be much,
const GOING_ON: i64 = 16;
/// but no more than this, unless the first step does: all of its ids are in memory at once.
const LARGEST_STEP: i64 = 1 << 20;
/// The code of a statement that gave up waiting for a lock.
const LOCK_NOT_AVAILABLE: &str = "55P03";

statements!(
    advance,
    announce,
    bury,
    claim,
    cleanup_dead_letters,
    conclude_dead_letters,
    count_dead_letters,
    dead_letters,
    depart,
    end_waits,
    enqueue,
    enqueue_one,
    forget_records,
    mark_requeued,
    pages,
    partition_ids,
    pause_partition,
    pause_queue,
    peek,
    queue_partitions,
    queues,
    reclaim,
    record,
    records,
    register_partitions,
    register_processors,
    register_queue,
    release,
    renew,
    repair_ids,
    repair_lock,
    repair_partitions,
    repair_runs,
    replay_dead_letters,
    resume_partition,
    roster,
    sequence,
    stats,
    storage,
    survey,
    sweep,
    take_dead_letter,
    unsettled,
    vitals,
);

/// What the verbs of a process remember.
#[derive(Debug, Default)]
pub struct Memory {
    quiet: Mutex<Option<Quiet>>,
    looks: Mutex<Looks>,
    places: Places,
}

/// When nothing was found anywhere. Nothing can have come since if no transaction has ended since.
#[derive(Debug, Clone)]
struct Quiet {
    partitions: Vec<PartitionId>,
    snapshot: String,
}

impl sealed::Sealed for Postgres {}

impl Backend for Postgres {
    type Statements = Statements;
    type Shared = Memory;
    type Listener = Ear;
    const CARRIES_SIGNALS: bool = true;
    const BEGIN: &'static str = "BEGIN";

    async fn execute(
        connection: &mut PgConnection,
        statement: impl SqlSafeStr + Send,
    ) -> Answer<()> {
        sqlx::raw_sql(statement).execute(connection).await?;
        Ok(())
    }

    async fn habits(pool: &Pool<Self>) -> Answer<Habits> {
        let ask = "SELECT CURRENT_SETTING('default_transaction_isolation'), \
                          CURRENT_SETTING('server_encoding')";
        let row = sqlx::query(ask).fetch_one(pool).await?;
        let (isolation, encoding): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Habits {
            explicit_isolation: isolation != "read committed",
            // The second one takes any bytes for text.
            ascii_only: !matches!(encoding, "UTF8" | "SQL_ASCII"),
        })
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
        let count = i32::from(partitions.count());
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
        connection: &mut PgConnection,
        messages: &[Addressed<'_>],
    ) -> Answer<Vec<OutboxMessageId>> {
        if let [(partition_id, message)] = messages {
            let id = query!(sql.enqueue_one)
                .bind(partition_id.0)
                .bind(message.payload_type())
                .bind(message.key())
                .bind(message.encoded_headers())
                .bind(message.payload())
                .try_map(|row: PgRow| row.try_get(0).map(OutboxMessageId))
                .fetch_one(connection)
                .await?;
            return Ok(vec![id]);
        }
        let messages = || messages.iter();
        let ids = query!(sql.enqueue)
            .bind(
                messages()
                    .map(|(partition_id, _)| partition_id.0)
                    .collect::<Vec<_>>(),
            )
            .bind(
                messages()
                    .map(|(_, message)| message.payload_type())
                    .collect::<Vec<_>>(),
            )
            .bind(
                messages()
                    .map(|(_, message)| message.key())
                    .collect::<Vec<_>>(),
            )
            .bind(
                messages()
                    .map(|(_, message)| message.encoded_headers())
                    .collect::<Vec<_>>(),
            )
            .bind(
                messages()
                    .map(|(_, message)| message.payload())
                    .collect::<Vec<_>>(),
            )
            .try_map(|row: PgRow| row.try_get(0).map(OutboxMessageId))
            .fetch_all(connection)
            .await?;
        Ok(ids)
    }

    async fn survey(store: &Store<Self>, partitions: &[PartitionId]) -> Answer<Look> {
        let quiet = lock(&store.shared.quiet).clone();
        let known = quiet
            .as_ref()
            .filter(|quiet| quiet.partitions == partitions);
        let mut session = Session::open(store).await?;
        let began = Instant::now();
        let everything = lock(&store.shared.looks).begin(began);
        let rows = query!(store.sql.survey)
            .bind(partitions.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(known.map(|quiet| &*quiet.snapshot))
            .bind(everything)
            .fetch_all(session.connection())
            .await?;
        let took = began.elapsed();
        lock(&store.shared.looks).end(began + took);
        session.end().await?;
        let found =
            |row: &&PgRow| matches!(row.try_get::<Option<i64>, _>("partition_id"), Ok(Some(_)));
        let read = |row: &PgRow| -> Answer<Survey> { survey!(row) };
        let surveys = rows
            .iter()
            .filter(found)
            .map(read)
            .collect::<Answer<Vec<_>>>()?;
        let snapshot = rows
            .first()
            .map(|row| row.try_get("snapshot"))
            .transpose()?;
        *lock(&store.shared.quiet) =
            snapshot
                .filter(|_| surveys.is_empty())
                .map(|snapshot| Quiet {
                    partitions: partitions.to_vec(),
                    snapshot,
                });
        Ok(Look { surveys, took })
    }

    async fn sequence(
        store: &Store<Self>,
        partitions: &[PartitionId],
        limit: u32,
        stride: Stride,
    ) -> Answer<Vec<(PartitionId, Sequenced)>> {
        let mut session = Session::open(store).await?;
        let batches = BATCHES_AT_ONCE / partitions.len().max(1);
        let limit = i64::from(limit) * i64::try_from(batches.max(1)).unwrap_or(1);
        let going_on = match stride {
            Stride::Growing => (limit * GOING_ON).min(LARGEST_STEP).max(limit),
            Stride::Even => limit,
        };
        let remember = lock(&store.shared.looks).is_renewing(Instant::now());
        let rows = query!(store.sql.sequence)
            .bind(partitions.iter().map(|id| id.0).collect::<Vec<_>>())
            .bind(limit)
            .bind(LONGEST_RUN)
            .bind(going_on)
            .bind(remember)
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        let mut sequenced: Vec<_> = partitions
            .iter()
            .map(|partition_id| (*partition_id, Sequenced::Busy))
            .collect();
        for row in rows {
            let partition_id = PartitionId(row.try_get(0)?);
            let (foreign_ids, count): (bool, i64) = (row.try_get(1)?, row.try_get(2)?);
            let more = row.try_get(3)?;
            let answer = if foreign_ids {
                Sequenced::ForeignIds
            } else {
                Sequenced::Done {
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    more,
                }
            };
            let own = sequenced.iter_mut().find(|(id, _)| *id == partition_id);
            if let Some(own) = own {
                own.1 = answer;
            }
        }
        Ok(sequenced)
    }

    async fn claim(
        store: &Store<Self>,
        partition_id: PartitionId,
        holder: &Incarnation,
        lease_millis: i64,
        takeover: Takeover,
    ) -> Answer<Option<Claimed>> {
        let mut session = Session::open(store).await?;
        let row = query!(store.sql.claim)
            .bind(partition_id.0)
            .bind(&holder.0)
            .bind(lease_millis)
            .bind(takeover.pulse().map(|pulse| pulse.epoch.0))
            .bind(takeover.pulse().map(|pulse| pulse.renewals))
            .bind(takeover == Takeover::Force)
            .fetch_optional(session.connection())
            .await?;
        session.end().await?;
        let Some(row) = row else { return Ok(None) };
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
        let sql = &store.sql;
        let buries = settlement.is_some_and(|settlement| !settlement.dead_letters.is_empty());
        if buries {
            let mut transaction = Self::begin(store, None).await?;
            let advance = Self::advance(sql, &mut transaction, lease, settlement, limit).await?;
            transaction.commit().await?;
            return Ok(advance);
        }
        let mut session = Session::open(store).await?;
        let connection = session.connection();
        let step = Step {
            lease,
            settlement,
            limit,
            commit,
        };
        let answer = step.take_at(&store.shared.places, sql, connection).await?;
        session.end().await?;
        Ok(answer)
    }

    async fn advance(
        sql: &Statements,
        connection: &mut PgConnection,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
    ) -> Answer<Advance> {
        let step = Step {
            lease,
            settlement,
            limit,
            commit: Commit::Durable,
        };
        let advance = step.take(sql, connection).await?;
        if let (Some(settlement), Advance::Held(_)) = (settlement, &advance) {
            bury(sql, connection, &settlement.dead_letters).await?;
        }
        Ok(advance)
    }

    async fn renew(store: &Store<Self>, leases: &[Lease]) -> Answer<Vec<PartitionId>> {
        let mut session = Session::open(store).await?;
        let (partitions, epochs) = columns(leases);
        let renewed = query!(store.sql.renew)
            .bind(partitions)
            .bind(epochs)
            .try_map(|row: PgRow| row.try_get(0).map(PartitionId))
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        Ok(renewed)
    }

    async fn release(store: &Store<Self>, lease: Lease) -> Answer<()> {
        let mut session = Session::open(store).await?;
        query!(store.sql.release)
            .bind(lease.partition_id.0)
            .bind(lease.epoch.0)
            .execute(session.connection())
            .await?;
        session.end().await?;
        Ok(())
    }

    async fn sweep(store: &Store<Self>, partition_id: PartitionId, limit: u32) -> Answer<Swept> {
        let mut session = Session::open(store).await?;
        let row = query!(store.sql.sweep)
            .bind(partition_id.0)
            .bind(i64::from(limit))
            .fetch_one(session.connection())
            .await?;
        session.end().await?;
        let messages = u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0);
        Ok(Swept {
            messages,
            more: messages >= u64::from(limit),
            busy: row.try_get(1)?,
        })
    }

    /// Autovacuum looks once a minute by default, and a million messages pass in seconds. Who is not the
    /// owner of the tables is told so by a warning, and nothing happens.
    async fn reclaim(store: &Store<Self>) -> Answer<Option<Reclaimed>> {
        if store.pool.options().get_max_connections() < RECLAIMING_POOL {
            return Ok(None);
        }
        let mut connection = OwnConnection::acquire(&store.workers).await?;
        connection.leave_lane();
        // Not inside any transaction, whatever the server's default isolation.
        let vacuum = AssertSqlSafe(Arc::clone(&store.sql.reclaim));
        sqlx::raw_sql(vacuum).execute(&mut *connection).await?;
        connection.give_back();
        let mut session = Session::open(store).await?;
        let row = query!(store.sql.pages)
            .fetch_one(session.connection())
            .await?;
        session.end().await?;
        let (pages, is_empty): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Some(Reclaimed {
            worth_while: u64::try_from(pages).unwrap_or(0) * 10,
            held: is_empty && pages > 0,
        }))
    }

    async fn announce(
        store: &Store<Self>,
        process: &Process,
        alive_millis: i64,
    ) -> Answer<Vec<Process>> {
        let mut session = Session::open(store).await?;
        let rows = query!(store.sql.announce)
            .bind(&process.incarnation.0)
            .bind(serde_json::json!(process.queues).to_string())
            .bind(alive_millis)
            .bind(host())
            .bind(VERSION)
            .fetch_all(session.connection())
            .await?;
        session.end().await?;
        rows.iter().map(|row| process!(row)).collect()
    }

    async fn depart(store: &Store<Self>, incarnation: &Incarnation) -> Answer<()> {
        let mut session = Session::open(store).await?;
        query!(store.sql.depart)
            .bind(&incarnation.0)
            .execute(session.connection())
            .await?;
        session.end().await?;
        Ok(())
    }

    async fn signal(store: &Store<Self>) -> Answer<()> {
        signals::signal(store).await
    }

    async fn listen(store: &Store<Self>) -> Answer<Ear> {
        signals::listen(store).await
    }

    async fn hear(ear: &mut Ear) -> Answer<()> {
        ear.hear().await
    }

    async fn begin(
        store: &Store<Self>,
        orphan_millis: Option<i64>,
    ) -> Answer<OwnTransaction<Self>> {
        let millis = orphan_millis.unwrap_or(ORPHAN_MILLIS);
        // Two statements in one round trip.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SET LOCAL idle_in_transaction_session_timeout = {millis}"
        );
        OwnTransaction::begin(&store.workers, AssertSqlSafe(begin).into_sql_str()).await
    }

    async fn end_session(store: &Store<Self>, session: i64, open_for: Duration) -> Answer<()> {
        // Only one that is at work in a transaction that old: another's number may be the same soon after this
        // one has gone.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE pid = $1 AND usename = current_user AND datname = current_database() \
                     AND state = 'active' AND xact_start <= clock_timestamp() - $2 * interval '1 ms'";
        let mut own = Session::open(store).await?;
        sqlx::query(end)
            .bind(i32::try_from(session).unwrap_or(0))
            .bind(open_for.as_secs_f64() * 1000.0)
            .execute(own.connection())
            .await?;
        own.end().await
    }

    async fn end_waits(store: &Store<Self>, waited: Duration) -> Answer<()> {
        let mut own = Session::open(store).await?;
        query!(store.sql.end_waits)
            .bind(waited.as_secs_f64() * 1000.0)
            .execute(own.connection())
            .await?;
        own.end().await
    }

    fn is_passing(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        // Serialisation failure, deadlock, lock not available, our own idle timeout, a primary that was
        // just demoted, and the classes of connection trouble, resources, operator's intervention and
        // system errors.
        matches!(
            &*code,
            "40001" | "40P01" | LOCK_NOT_AVAILABLE | "25P03" | "25006"
        ) || ["08", "53", "57", "58"]
            .iter()
            .any(|class| code.starts_with(class))
    }
}

fn columns(leases: &[Lease]) -> (Vec<i64>, Vec<i64>) {
    leases
        .iter()
        .map(|lease| (lease.partition_id.0, lease.epoch.0))
        .unzip()
}

registered!(Postgres, PgConnection, PgRow, i32);
