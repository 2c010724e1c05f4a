//! A connection of the pool for one verb of ours. One that did not come to its end, because it was
//! dropped at its deadline or failed, leaves its connection in an unknown state: it is closed, not
//! given back. A pool by itself would wait for such a connection to answer, for ever if the network
//! has swallowed the answer, and be a connection short meanwhile.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tokio::time::{Instant, timeout_at};

use crate::error::OutboxError;

/// How long to wait for a connection before asking anew. While a server is away a pool tries less and
/// less often, by itself after seconds only, and would find its return late.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a connection that goes back to the pool may take to answer the pool's ping.
const GOODBYE: Duration = Duration::from_secs(5);

/// A connection that is closed when dropped, unless it was given back.
pub(crate) struct OwnConnection<DB: Database> {
    connection: PoolConnection<DB>,
    sound: bool,
}

impl<DB: Database> OwnConnection<DB> {
    pub(crate) async fn acquire(pool: &Pool<DB>) -> Result<Self, OutboxError> {
        let until = Instant::now() + pool.options().get_acquire_timeout();
        loop {
            let asked = timeout_at(until.min(Instant::now() + ASK_AGAIN), pool.acquire());
            match asked.await {
                Ok(connection) => {
                    return Ok(Self {
                        connection: connection?,
                        sound: false,
                    });
                }
                Err(_) if Instant::now() >= until => return Err(sqlx::Error::PoolTimedOut.into()),
                Err(_) => {}
            }
        }
    }

    /// The verb came to its end.
    pub(crate) fn give_back(mut self) {
        self.sound = true;
    }
}

impl<DB: Database> fmt::Debug for OwnConnection<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("OwnConnection");
        fields.field("sound", &self.sound).finish_non_exhaustive()
    }
}

impl<DB: Database> Deref for OwnConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for OwnConnection<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}

impl<DB: Database> Drop for OwnConnection<DB> {
    fn drop(&mut self) {
        if !self.sound {
            self.connection.close_on_drop();
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let returned = self.connection.return_to_pool();
            runtime.spawn(async move {
                let _ = tokio::time::timeout(GOODBYE, returned).await;
            });
        }
    }
}
