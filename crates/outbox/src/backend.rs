//! The only door to SQL: a sealed trait of domain verbs, one folder per database behind it. Nothing
//! outside `backend/` knows which database it talks to.
//!
//! A verb that takes a [`Store`] runs in a transaction of its own, on a connection of the pool, and
//! is committed when it returns `Ok`. A verb that takes a connection runs in whatever transaction
//! that connection is in. When the reply to a commit is lost a verb returns an error although its
//! work was done; each verb says what a second call then does.

mod connection;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod decode;
mod lane;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod prefix;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod transaction;
mod vocabulary;

use std::future::Future;
use std::time::Duration;

use sqlx::{Pool, SqlSafeStr};

use crate::audit::{AuditEntry, NewEntry};
use crate::dead_letter::{DeadLetter, DeadLetterFilter};
use crate::error::OutboxError;
use crate::health::{ProcessStats, Vitals};
use crate::message::OutboxMessageId;
use crate::queue::{Partitions, QueueName};
use crate::stats::PartitionStats;

pub(crate) use connection::OwnConnection;
pub(crate) use lane::Lane;
pub(crate) use prefix::StatementSet;
pub use prefix::TablePrefix;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use session::Session;
pub(crate) use store::Store;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use transaction::ORPHAN_MILLIS;
pub(crate) use transaction::OwnTransaction;
pub(crate) use vocabulary::{
    Addressed, Advance, Burial, Claimed, Commit, Conclusion, Direction, Epoch, Habits, Head,
    Incarnation, Lease, Look, Millis, PartitionId, Process, Pulse, ReadLimit, Reclaimed, Savepoint,
    Seq, Sequenced, Settlement, StoredMessage, Stride, Survey, Swept, Takeover, TimeSource,
};

/// The version of the schema this library works with.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The version of this library, as processes announce it.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The machine this process runs on and its number there, as it announces itself.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn host() -> String {
    let name = gethostname::gethostname();
    let name: String = name.to_string_lossy().chars().take(255).collect();
    format!("{name}:{}", std::process::id())
}

pub(crate) mod sealed {
    /// Keeps the set of databases closed: a backend is more than an implementation of a trait.
    pub trait Sealed {}
}

type Answer<T> = Result<T, OutboxError>;

/// A database the outbox can live in: `sqlx::Postgres`, `sqlx::MySql` or `sqlx::Sqlite`.
pub trait Backend: DeadLetterVerbs + OperatorVerbs {
    /// The statements with the prefix filled in.
    #[doc(hidden)]
    type Statements: StatementSet;

    /// What the verbs of a process share.
    #[doc(hidden)]
    type Shared: std::fmt::Debug + Default + Send + Sync;

    /// A connection of its own that hears other processes. `()` where the database cannot carry
    /// signals: there the scout's look is all there is.
    #[doc(hidden)]
    type Listener: Send;

    /// Whether processes can signal each other through the database.
    #[doc(hidden)]
    const CARRIES_SIGNALS: bool;

    /// Whether the database runs inside this process.
    #[doc(hidden)]
    const EMBEDDED: bool = false;

    /// How a producer's transaction begins.
    #[doc(hidden)]
    const BEGIN: &'static str;

    /// Runs a statement without parameters on a connection, whatever transaction it is in.
    #[doc(hidden)]
    fn execute(
        connection: &mut Self::Connection,
        statement: impl SqlSafeStr + Send,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// What has to be known of the server before anything else is asked of it.
    #[doc(hidden)]
    fn habits(pool: &Pool<Self>) -> impl Future<Output = Answer<Habits>> + Send {
        let _ = pool;
        std::future::ready(Ok(Habits::default()))
    }

    /// Brings the schema up to date. Twice: nothing. Two at once: one waits for the other.
    #[doc(hidden)]
    fn migrate_up(store: &Store<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// Removes everything. Twice: nothing.
    #[doc(hidden)]
    fn migrate_down(store: &Store<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// The version of the schema that is there; 0 when there is none.
    #[doc(hidden)]
    fn schema_version(store: &Store<Self>) -> impl Future<Output = Answer<u32>> + Send;

    /// Makes sure the queue exists with this many partitions, and answers their ids in order.
    /// Twice: the same ids.
    #[doc(hidden)]
    fn register(
        store: &Store<Self>,
        queue: &QueueName,
        partitions: Partitions,
    ) -> impl Future<Output = Answer<Vec<PartitionId>>> + Send;

    /// Writes messages in the caller's transaction, in this order. Twice: twice as many.
    #[doc(hidden)]
    fn enqueue(
        sql: &Self::Statements,
        connection: &mut Self::Connection,
        messages: &[Addressed<'_>],
    ) -> impl Future<Output = Answer<Vec<OutboxMessageId>>> + Send;

    /// Looks at these partitions and answers those that have something to do. Writes nothing, scans
    /// nothing.
    #[doc(hidden)]
    fn survey(
        store: &Store<Self>,
        partitions: &[PartitionId],
    ) -> impl Future<Output = Answer<Look>> + Send;

    /// Gives about `limit` committed messages of each partition their numbers, more where a step costs
    /// the same and `stride` lets it grow. Never waits for a lock. Twice: the second finds nothing or the next ones.
    #[doc(hidden)]
    fn sequence(
        store: &Store<Self>,
        partitions: &[PartitionId],
        limit: u32,
        stride: Stride,
    ) -> impl Future<Output = Answer<Vec<(PartitionId, Sequenced)>>> + Send;

    /// Takes the lease for `lease_millis` if it is free, `holder`'s own, has run out, or as `takeover`
    /// allows; every renewal is for as long. Never waits for a lock. Twice: the second replaces the
    /// first.
    #[doc(hidden)]
    fn claim(
        store: &Store<Self>,
        partition_id: PartitionId,
        holder: &Incarnation,
        lease_millis: i64,
        takeover: Takeover,
    ) -> impl Future<Output = Answer<Option<Claimed>>> + Send;

    /// [`advance`](Self::advance) in a transaction of its own.
    #[doc(hidden)]
    fn advance_alone(
        store: &Store<Self>,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
        commit: Commit,
    ) -> impl Future<Output = Answer<Advance>> + Send;

    /// Settles, renews the lease and reads what comes next, if the lease is still ours. Twice with
    /// the same settlement: the same again, for a cursor never moves back.
    #[doc(hidden)]
    fn advance(
        sql: &Self::Statements,
        connection: &mut Self::Connection,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
    ) -> impl Future<Output = Answer<Advance>> + Send;

    /// Renews leases that are ours, but for those whose row somebody has locked; answers which still are ours,
    /// locked or not.
    #[doc(hidden)]
    fn renew(
        store: &Store<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = Answer<Vec<PartitionId>>> + Send;

    /// Gives a lease back. One that is no longer ours is left alone. Never several at once: who waits for one
    /// row that somebody has locked would keep the others locked.
    #[doc(hidden)]
    fn release(store: &Store<Self>, lease: Lease) -> impl Future<Output = Answer<()>> + Send;

    /// Removes at most about `limit` settled messages of a partition.
    #[doc(hidden)]
    fn sweep(
        store: &Store<Self>,
        partition_id: PartitionId,
        limit: u32,
    ) -> impl Future<Output = Answer<Swept>> + Send;

    /// Gives the room of removed messages back, where the database takes its time to do so by itself;
    /// `None` where that is never worth while.
    #[doc(hidden)]
    fn reclaim(_: &Store<Self>) -> impl Future<Output = Answer<Option<Reclaimed>>> + Send {
        async { Ok(None) }
    }

    /// Says that a process is alive and what it handles, and answers who else is: whoever said so
    /// within the last `alive_millis`.
    #[doc(hidden)]
    fn announce(
        store: &Store<Self>,
        process: &Process,
        alive_millis: i64,
    ) -> impl Future<Output = Answer<Vec<Process>>> + Send;

    /// Says that a process is gone.
    #[doc(hidden)]
    fn depart(
        store: &Store<Self>,
        incarnation: &Incarnation,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Tells other processes that there is something to look at. Outside any producer's transaction.
    #[doc(hidden)]
    fn signal(store: &Store<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// Begins to listen for [`signal`](Self::signal)s.
    #[doc(hidden)]
    fn listen(store: &Store<Self>) -> impl Future<Output = Answer<Self::Listener>> + Send;

    /// Waits for the next signal. An error: listen anew, and look at everything.
    #[doc(hidden)]
    fn hear(listener: &mut Self::Listener) -> impl Future<Output = Answer<()>> + Send;

    /// Begins a transaction of ours: READ COMMITTED, or IMMEDIATE on SQLite. One that stays idle
    /// for longer than `orphan_millis` is ended by the server, where it can: its process has vanished,
    /// and others need what it holds. Without a number, a second and a half.
    #[doc(hidden)]
    fn begin(
        store: &Store<Self>,
        orphan_millis: Option<i64>,
    ) -> impl Future<Output = Answer<OwnTransaction<Self>>> + Send;

    /// Sets, releases or rolls back to the one savepoint of a transactional handler. An error means
    /// that the transaction is gone: rolled back by a deadlock, committed by the handler or by DDL.
    #[doc(hidden)]
    fn savepoint(
        connection: &mut Self::Connection,
        verb: Savepoint,
    ) -> impl Future<Output = Answer<()>> + Send {
        async move {
            Self::execute(connection, verb.statement()).await?;
            if verb == Savepoint::Undo {
                Self::execute(connection, Savepoint::Release.statement()).await?;
            }
            Ok(())
        }
    }

    /// Ends what another connection of ours does on the server, which does not notice by itself that
    /// its client has gone while it runs a statement.
    #[doc(hidden)]
    fn end_session(
        store: &Store<Self>,
        session: i64,
        open_for: Duration,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Ends what workers, of this process or another, have asked for and what has waited for a lock for
    /// longer than `waited`. Most of it nobody waits for any more, which a server does not notice either.
    #[doc(hidden)]
    fn end_waits(store: &Store<Self>, waited: Duration) -> impl Future<Output = Answer<()>> + Send {
        let _ = (store, waited);
        std::future::ready(Ok(()))
    }

    /// Whether the same statement may succeed later: a deadlock, a lock timeout, a shutdown.
    #[doc(hidden)]
    fn is_passing(error: &dyn sqlx::error::DatabaseError) -> bool;
}

/// What can be done to dead letters: a part of [`Backend`] with a file of its own per database.
pub trait DeadLetterVerbs: sqlx::Database + sealed::Sealed {
    /// The dead letters a filter lets through, newest first. Writes nothing.
    #[doc(hidden)]
    fn dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> impl Future<Output = Answer<Vec<DeadLetter>>> + Send
    where
        Self: Backend;

    /// How many dead letters a filter lets through, whatever its limit. Writes nothing.
    #[doc(hidden)]
    fn count_dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> impl Future<Output = Answer<u64>> + Send
    where
        Self: Backend;

    /// Claims dead letters that are pending, or whose claim has run out, under `token` until
    /// `claim_millis` from now. Never waits for a lock. Twice: the second finds the next ones.
    #[doc(hidden)]
    fn replay_dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
        token: &str,
        claim_millis: i64,
    ) -> impl Future<Output = Answer<Vec<DeadLetter>>> + Send
    where
        Self: Backend;

    /// Ends dead letters, each if its claim is (still) as given: `None` is one that nobody has
    /// claimed. Answers how many. Twice: none.
    #[doc(hidden)]
    fn conclude_dead_letters(
        store: &Store<Self>,
        letters: &[(i64, Option<&str>)],
        conclusion: &Conclusion,
    ) -> impl Future<Output = Answer<u64>> + Send
    where
        Self: Backend;

    /// Removes dead letters that are resolved or discarded, as many as the filter allows. Answers
    /// how many.
    #[doc(hidden)]
    fn cleanup_dead_letters(
        store: &Store<Self>,
        filter: &DeadLetterFilter,
    ) -> impl Future<Output = Answer<u64>> + Send
    where
        Self: Backend;

    /// Locks a dead letter that is pending, or whose claim has run out, for the rest of the
    /// transaction. `None` when there is no such one, or somebody else has it.
    #[doc(hidden)]
    fn take_dead_letter(
        sql: &Self::Statements,
        connection: &mut Self::Connection,
        id: i64,
    ) -> impl Future<Output = Answer<Option<DeadLetter>>> + Send
    where
        Self: Backend;

    /// Marks a dead letter as resolved by a new message.
    #[doc(hidden)]
    fn mark_requeued(
        sql: &Self::Statements,
        connection: &mut Self::Connection,
        id: i64,
        message_id: OutboxMessageId,
    ) -> impl Future<Output = Answer<()>> + Send
    where
        Self: Backend;
}

/// What an operator sees and does: a part of [`Backend`] with a file of its own per database.
pub trait OperatorVerbs: sqlx::Database + sealed::Sealed {
    /// What an operator wants to know of these partitions. Writes nothing.
    #[doc(hidden)]
    fn stats(
        store: &Store<Self>,
        partitions: &[PartitionId],
    ) -> impl Future<Output = Answer<Vec<PartitionStats>>> + Send
    where
        Self: Backend;

    /// The first messages of a queue that are not settled, sequenced or not, with their partition, as
    /// this connection sees them, in the order of their ids. Writes nothing.
    #[doc(hidden)]
    fn unsettled(
        sql: &Self::Statements,
        connection: &mut Self::Connection,
        queue: &str,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<(u32, StoredMessage)>>> + Send
    where
        Self: Backend;

    /// The first messages of a partition that have a number and are not settled, from the number `from`
    /// on if that is later, in order. Holds and writes nothing.
    #[doc(hidden)]
    fn peek(
        store: &Store<Self>,
        partition_id: PartitionId,
        from: Option<Seq>,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<StoredMessage>>> + Send
    where
        Self: Backend;

    /// The queues there are, and the number of partitions of each.
    #[doc(hidden)]
    fn queues(store: &Store<Self>) -> impl Future<Output = Answer<Vec<(String, i32)>>> + Send
    where
        Self: Backend;

    /// The processes that were not forgotten yet.
    #[doc(hidden)]
    fn roster(store: &Store<Self>) -> impl Future<Output = Answer<Vec<ProcessStats>>> + Send
    where
        Self: Backend;

    /// How many bytes the outbox's tables take.
    #[doc(hidden)]
    fn storage(store: &Store<Self>) -> impl Future<Output = Answer<u64>> + Send
    where
        Self: Backend;

    /// Writes down what somebody did by hand. Twice: two entries.
    #[doc(hidden)]
    fn record(store: &Store<Self>, entry: &NewEntry<'_>) -> impl Future<Output = Answer<()>> + Send
    where
        Self: Backend;

    /// What was done by hand, before an entry and newest first.
    #[doc(hidden)]
    fn records(
        store: &Store<Self>,
        before: i64,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<AuditEntry>>> + Send
    where
        Self: Backend;

    /// What the database measures of itself.
    #[doc(hidden)]
    fn vitals(store: &Store<Self>) -> impl Future<Output = Answer<Vitals>> + Send
    where
        Self: Backend;

    /// Pauses or resumes a partition, or its whole queue.
    #[doc(hidden)]
    fn pause(
        store: &Store<Self>,
        queue: &str,
        partition_id: Option<PartitionId>,
        paused: bool,
    ) -> impl Future<Output = Answer<()>> + Send
    where
        Self: Backend;

    /// Makes peace with a restored dump: gives every message without a number one, in the order of
    /// ids, and forgets the transaction ids of the old cluster. Answers how many messages got their
    /// number. Nothing to do on databases that do not sequence by transaction id. Twice: 0.
    #[doc(hidden)]
    fn repair(store: &Store<Self>) -> impl Future<Output = Answer<u64>> + Send
    where
        Self: Backend;
}

/// Whether the same statement may succeed later. The one place that decides it, for every database.
pub(crate) fn is_retryable(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return is_connection_loss(error);
    };
    #[cfg(feature = "postgres")]
    if error
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some()
    {
        return sqlx::Postgres::is_passing(error.as_ref());
    }
    #[cfg(feature = "mysql")]
    if error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some()
    {
        return sqlx::MySql::is_passing(error.as_ref());
    }
    #[cfg(feature = "sqlite")]
    if error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        return sqlx::Sqlite::is_passing(error.as_ref());
    }
    let _ = error;
    false
}

/// Whether an error that no database sent means that it could not be reached.
fn is_connection_loss(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Io, PoolTimedOut, Protocol, Tls, WorkerCrashed};
    matches!(
        error,
        Io(_) | Tls(_) | Protocol(_) | PoolTimedOut | WorkerCrashed
    )
}
