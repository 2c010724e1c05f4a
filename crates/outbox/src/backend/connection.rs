//! A connection of the pool for one verb of ours. One that did not come to its end, because it was
//! dropped at its deadline or failed, leaves its connection in an unknown state: it is closed, not
//! given back. A pool by itself would wait for such a connection to answer, for ever if the network
//! has swallowed the answer, and be a connection short meanwhile.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use sqlx::pool::PoolConnection;
use sqlx::{Pool, SqlSafeStr as _};
use sqlx_core::transaction::TransactionManager as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::Backend;
use super::lane::{Hot, Lane, Place, Turn};
use crate::error::OutboxError;
use crate::metrics;
use crate::patience::FIRST;

/// How long to wait for a connection before asking once more. While a server is away a pool tries less
/// and less often, after seconds in the end, and would find its return late.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a transaction that nobody ended may take to be rolled back.
const ROLLBACK: Duration = Duration::from_secs(5);

/// How long a connection that was used a moment ago may take to begin a transaction.
const HOT: Duration = Duration::from_secs(5);

/// What is asked of a server in less time nobody has ended: what waits for a lock is (see
/// [`Backend::end_waits`]), from [`FIRST`] on, and that may reach whatever its connection does next.
const UNDISTURBED: Duration = FIRST.saturating_sub(Duration::from_millis(100));

/// What becomes of a connection that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDrop {
    /// Nobody knows what it is doing.
    Close,
    /// It is inside a transaction and well.
    RollBack,
    Keep,
}

/// A connection that is closed when dropped, unless it was given back.
pub(crate) struct OwnConnection<DB: Backend> {
    /// `None` while it is dropped.
    connection: Option<Hot<DB>>,
    lane: Arc<Lane<DB>>,
    on_drop: OnDrop,
    /// To write, while it may.
    turn: Option<Turn>,
    /// In the lane, while it is used.
    place: Option<Place>,
    /// Since when it is at a verb of ours, and not at the application's own.
    at_work: Option<Instant>,
}

impl<DB: Backend> OwnConnection<DB> {
    pub(crate) async fn acquire(lane: &Arc<Lane<DB>>) -> Result<Self, OutboxError> {
        let place = lane.place().await;
        let connection = match lane.take() {
            Some(connection) => connection,
            None => {
                let since = Instant::now();
                let connection = acquire(&lane.pool).await?;
                metrics::waited_for_pool(since);
                Hot::new(connection)
            }
        };
        let mut own = Self::new(connection, lane);
        own.place = place;
        own.at_work = Some(Instant::now());
        Ok(own)
    }

    fn new(connection: Hot<DB>, lane: &Arc<Lane<DB>>) -> Self {
        Self {
            connection: Some(connection),
            lane: Arc::clone(lane),
            on_drop: OnDrop::Close,
            turn: None,
            place: None,
            at_work: None,
        }
    }

    /// Whether somebody may be about to end what its session does.
    pub(crate) fn may_be_ended(&self) -> bool {
        let long = |since: Instant| since.elapsed() >= UNDISTURBED;
        !DB::EMBEDDED && self.at_work.is_some_and(long)
    }

    /// A connection that is about to write.
    pub(crate) async fn acquire_to_write(lane: &Arc<Lane<DB>>) -> Result<Self, OutboxError> {
        let mut own = Self::acquire(lane).await?;
        own.turn = lane.turn().await;
        Ok(own)
    }

    /// A connection inside a transaction, which ends with it.
    pub(crate) async fn begin(lane: &Arc<Lane<DB>>) -> Result<Self, OutboxError> {
        if let Some(parked) = lane.take() {
            let mut own = Self::new(parked, lane);
            match timeout(HOT, own.begin_now()).await {
                Ok(Ok(())) => return Ok(own),
                Ok(Err(error)) if DB::EMBEDDED => return Err(error.into()),
                // It may have been closed meanwhile: another one, which the pool has looked at.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        let mut own = Self::new(Hot::new(lane.pool.acquire().await?), lane);
        own.begin_now().await?;
        Ok(own)
    }

    async fn begin_now(&mut self) -> Result<(), sqlx::Error> {
        self.turn = self.lane.turn().await;
        DB::TransactionManager::begin(self, Some(DB::BEGIN.into_sql_str())).await?;
        self.on_drop = OnDrop::RollBack;
        Ok(())
    }

    /// Commits what [`begin`](Self::begin) began.
    pub(crate) async fn commit(mut self) -> Result<(), OutboxError> {
        self.on_drop = OnDrop::Close;
        DB::TransactionManager::commit(&mut self).await?;
        self.give_back();
        Ok(())
    }

    /// Leaves its place to others: it will be held for long.
    pub(crate) fn leave_lane(&mut self) {
        self.place = None;
    }

    /// The verb came to its end.
    pub(crate) fn give_back(mut self) {
        self.on_drop = OnDrop::Keep;
    }
}

async fn acquire<DB: Backend>(pool: &Pool<DB>) -> Result<PoolConnection<DB>, OutboxError> {
    // The first request keeps its place in the line, and the connect it may have begun.
    let mut first = pin!(pool.acquire());
    let mut answer = timeout(ASK_AGAIN, first.as_mut()).await;
    while answer.is_err() {
        let again = timeout(ASK_AGAIN, pool.acquire());
        answer = match select(first.as_mut(), pin!(again)).await {
            Either::Left((connection, _)) => Ok(connection),
            // What the first one is told counts.
            Either::Right((Ok(Err(_)), _)) => Ok(first.as_mut().await),
            Either::Right((answer, _)) => answer,
        };
    }
    Ok(answer.unwrap_or(Err(sqlx::Error::PoolTimedOut))?)
}

impl<DB: Backend> fmt::Debug for OwnConnection<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("OwnConnection");
        fields
            .field("on_drop", &self.on_drop)
            .finish_non_exhaustive()
    }
}

impl<DB: Backend> Deref for OwnConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection.as_ref().expect(HERE).connection
    }
}

impl<DB: Backend> DerefMut for OwnConnection<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection.as_mut().expect(HERE).connection
    }
}

/// It is only taken by `drop`.
const HERE: &str = "a connection until it is dropped";

impl<DB: Backend> Drop for OwnConnection<DB> {
    fn drop(&mut self) {
        let Some(mut hot) = self.connection.take() else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            // Its runtime has gone, and everything that could be done with it.
            std::mem::forget(hot);
            return;
        };
        match self.on_drop {
            // Nobody else shall get what may be meant for it.
            OnDrop::Keep if self.may_be_ended() => hot.connection.close_on_drop(),
            OnDrop::Keep => self.lane.park(hot, &runtime),
            OnDrop::Close if !DB::EMBEDDED => {
                hot.connection.close_on_drop();
                self.lane.miss();
            }
            // No wire can have swallowed anything in an embedded database, and to close the only
            // connection of one in memory would be to lose it.
            OnDrop::Close | OnDrop::RollBack => {
                let (lane, turn) = (Arc::clone(&self.lane), self.turn.take());
                runtime.spawn(async move {
                    let rollback = DB::TransactionManager::rollback(&mut hot.connection);
                    match timeout(ROLLBACK, rollback).await {
                        Ok(Ok(())) => {
                            // The driver of an embedded database lets the next rollback pass if nobody
                            // waited for the end of a commit: let it be this one, which has nothing to do.
                            DB::TransactionManager::start_rollback(&mut hot.connection);
                            lane.park(hot, &Handle::current());
                        }
                        Ok(Err(_)) | Err(_) => hot.connection.close_on_drop(),
                    }
                    drop(turn);
                });
            }
        }
    }
}
