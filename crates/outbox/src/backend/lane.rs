//! Connections that go from one verb to the next. A pool asks every connection that comes back whether
//! it is still there, which costs as much as a small statement; whoever needs one a moment later gets it
//! from here without that.
//!
//! Nobody else is kept waiting for them: a connection stays here for a moment, while the pool has as many
//! idle ones besides, and goes back when it has not.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::Pool;
use sqlx::pool::PoolConnection;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::Backend;
use crate::engine::lock;

/// How long a connection stays here at most.
const MOMENT: Duration = Duration::from_secs(1);
/// How long it stays away from the pool, which knows how old it may get.
const AWAY: Duration = Duration::from_secs(10);
/// How often it is asked whether it can still be missed.
const LOOK: Duration = Duration::from_millis(20);
/// How long a connection that goes back to the pool may take to answer the pool's question.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long to wait for one's turn before asking the database itself, which has a limit of its own.
const TURN: Duration = Duration::from_secs(1);

/// How much of the pool a lane uses at once: more of them would only wait for each other in the server.
const SHARE: usize = 4;
/// How long to wait for a place in the lane before going on without: some may wait for answers that
/// never come.
const PLACE: Duration = Duration::from_millis(100);
/// How much of the pool all processors together use at most, whatever they wait for: there are many of
/// them, and the others who go on without a place are few. As much again is for transactional handlers.
const CROWD: usize = 2;

/// How long ago that is which happened lately.
const LATELY: Duration = Duration::from_secs(60);

/// A place in the lane.
pub(crate) type Place = OwnedSemaphorePermit;

/// Whose turn it is to write, where only one can: they line up here, first come first served. A database
/// would let them try again and again, with pauses in between, and the luckiest would be first.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// The connections of a pool for one kind of use.
pub struct Lane<DB: Backend> {
    pub(crate) pool: Pool<DB>,
    parked: Mutex<Parked<DB>>,
    writers: Arc<tokio::sync::Mutex<()>>,
    places: Arc<Semaphore>,
    seats: Arc<Semaphore>,
    /// How many connections many of a kind may have at once.
    pub(crate) crowd: usize,
    /// When a connection was last missed, or given up without an answer.
    missed: Mutex<Option<Instant>>,
}

/// A connection that goes from one to the next.
pub(crate) struct Hot<DB: Backend> {
    pub(crate) connection: PoolConnection<DB>,
    /// When it came from the pool.
    since: Instant,
}

impl<DB: Backend> Hot<DB> {
    pub(crate) fn new(connection: PoolConnection<DB>) -> Self {
        let since = Instant::now();
        Self { connection, since }
    }
}

struct Parked<DB: Backend> {
    connections: Vec<(Instant, Hot<DB>)>,
    /// Somebody comes by to take them back to the pool.
    looked_after: bool,
}

impl<DB: Backend> Lane<DB> {
    pub(crate) fn new(pool: &Pool<DB>, writers: &Arc<tokio::sync::Mutex<()>>) -> Arc<Self> {
        let connections = pool.options().get_max_connections() as usize;
        let crowd = (connections / CROWD).max(1);
        Arc::new(Self {
            pool: pool.clone(),
            writers: Arc::clone(writers),
            places: Arc::new(Semaphore::new((connections / SHARE).max(2))),
            seats: Arc::new(Semaphore::new(crowd)),
            crowd,
            missed: Mutex::default(),
            parked: Mutex::new(Parked {
                connections: Vec::new(),
                looked_after: false,
            }),
        })
    }

    /// A lane of another pool for the same database.
    #[cfg(feature = "sqlite")]
    pub(crate) fn beside(&self, pool: &Pool<DB>) -> Arc<Self> {
        Self::new(pool, &self.writers)
    }

    /// Waits for a place.
    pub(crate) async fn place(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).acquire_owned();
        let place = timeout(PLACE, place).await;
        if place.is_err() {
            self.miss();
        }
        place.ok()?.ok()
    }

    /// A connection is missed, or was given up without an answer.
    pub(crate) fn miss(&self) {
        *lock(&self.missed) = Some(Instant::now());
    }

    /// Whether that was so lately: what waits for a lock then keeps others from their work.
    pub(crate) fn was_missed(&self) -> bool {
        lock(&self.missed).is_some_and(|at| at.elapsed() < LATELY)
    }

    /// Waits for one of the seats that all processors share, for as long as it takes: who sits there and
    /// is not answered gets up when its patience ends. Not by one that has a connection, for others may
    /// sit and wait for that. In an embedded database there is no answer to wait for.
    pub(crate) async fn seat(&self) -> Option<Place> {
        if DB::EMBEDDED {
            return None;
        }
        Arc::clone(&self.seats).acquire_owned().await.ok()
    }

    /// Waits for one's turn to write, where that is needed.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        if !DB::EMBEDDED {
            return None;
        }
        let turn = Arc::clone(&self.writers).lock_owned();
        timeout(TURN, turn).await.ok()
    }

    /// The one that was parked last.
    pub(crate) fn take(&self) -> Option<Hot<DB>> {
        let (_, hot) = lock(&self.parked).connections.pop()?;
        Some(hot)
    }

    /// Keeps a connection for the next one, if nobody can miss it.
    pub(crate) fn park(self: &Arc<Self>, hot: Hot<DB>, runtime: &Handle) {
        let mut parked = lock(&self.parked);
        let missed = parked.connections.len() >= self.pool.num_idle();
        if missed || self.pool.is_closed() || hot.since.elapsed() >= AWAY {
            drop(parked);
            give_back(hot, runtime);
            return;
        }
        parked.connections.push((Instant::now(), hot));
        if !std::mem::replace(&mut parked.looked_after, true) {
            runtime.spawn(look_after(Arc::clone(self)));
        }
    }

    /// Those that nobody wanted; `None` when none is left at all.
    fn unwanted(&self) -> Option<Vec<Hot<DB>>> {
        let mut parked = lock(&self.parked);
        // Whoever closes the pool waits for all of them.
        let missed = self.pool.is_closed() || parked.connections.len() > self.pool.num_idle();
        let unwanted = |since: &Instant| missed || since.elapsed() >= MOMENT;
        let old = parked
            .connections
            .iter()
            .take_while(|(since, _)| unwanted(since))
            .count();
        let unwanted: Vec<_> = parked.connections.drain(..old).map(|(_, it)| it).collect();
        parked.looked_after = !(unwanted.is_empty() && parked.connections.is_empty());
        parked.looked_after.then_some(unwanted)
    }
}

async fn look_after<DB: Backend>(lane: Arc<Lane<DB>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(unwanted) = lane.unwanted() else {
            return;
        };
        for hot in unwanted {
            give_back(hot, &Handle::current());
        }
    }
}

/// Returns a connection to its pool.
fn give_back<DB: Backend>(mut hot: Hot<DB>, runtime: &Handle) {
    runtime.spawn(async move {
        let _ = timeout(GOODBYE, hot.connection.return_to_pool()).await;
    });
}

impl<DB: Backend> Drop for Lane<DB> {
    fn drop(&mut self) {
        let mut parked = lock(&self.parked);
        let connections = std::mem::take(&mut parked.connections);
        for (_, hot) in connections {
            match Handle::try_current() {
                Ok(runtime) => give_back(hot, &runtime),
                // Its runtime has gone, and everything that could be done with it.
                Err(_) => std::mem::forget(hot),
            }
        }
    }
}

impl<DB: Backend> fmt::Debug for Lane<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parked = lock(&self.parked).connections.len();
        f.debug_struct("Lane")
            .field("parked", &parked)
            .finish_non_exhaustive()
    }
}
