//! A connection of the pool for one verb of ours. One that did not come to its end, because it was
//! dropped at its deadline or failed, leaves its connection in an unknown state: it is closed, not
//! given back. A pool by itself would wait for such a connection to answer, for ever if the network
//! has swallowed the answer, and be a connection short meanwhile.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::Pool;
use sqlx::pool::PoolConnection;
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use super::Backend;
use crate::error::OutboxError;

/// How long to wait for a connection before asking once more. While a server is away a pool tries less
/// and less often, after seconds in the end, and would find its return late.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a connection that goes back to the pool may take to answer the pool's ping.
const GOODBYE: Duration = Duration::from_secs(5);

/// A connection that is closed when dropped, unless it was given back.
pub(crate) struct OwnConnection<DB: Backend> {
    /// `None` while it is dropped.
    connection: Option<PoolConnection<DB>>,
    sound: bool,
}

impl<DB: Backend> OwnConnection<DB> {
    pub(crate) async fn acquire(pool: &Pool<DB>) -> Result<Self, OutboxError> {
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
        let connection = answer.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        Ok(Self {
            connection: Some(connection),
            sound: false,
        })
    }

    /// The verb came to its end.
    pub(crate) fn give_back(mut self) {
        self.sound = true;
    }
}

impl<DB: Backend> fmt::Debug for OwnConnection<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("OwnConnection");
        fields.field("sound", &self.sound).finish_non_exhaustive()
    }
}

impl<DB: Backend> Deref for OwnConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.connection.as_deref().expect(HERE)
    }
}

impl<DB: Backend> DerefMut for OwnConnection<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.connection.as_deref_mut().expect(HERE)
    }
}

/// It is only taken by `drop`.
const HERE: &str = "a connection until it is dropped";

impl<DB: Backend> Drop for OwnConnection<DB> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if !self.sound && !DB::EMBEDDED {
            connection.close_on_drop();
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let sound = self.sound;
        runtime.spawn(async move {
            // No wire can have swallowed anything here, and to close the only connection of a
            // database in memory would be to lose it.
            if !sound
                && DB::TransactionManager::rollback(&mut connection)
                    .await
                    .is_err()
            {
                connection.close_on_drop();
                return;
            }
            let _ = timeout(GOODBYE, connection.return_to_pool()).await;
        });
    }
}
