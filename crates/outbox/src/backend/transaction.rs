//! A transaction of ours that leaves nothing behind: whatever happens between its beginning and its
//! end, a dropped future, a panic, a lost reply, the connection is closed rather than given back to
//! the pool in an unknown state.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::{Database, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use super::{Backend, Lane, OwnConnection};
use crate::error::OutboxError;

/// What is done to a connection before it goes back to the pool.
pub(crate) type Restore<DB> =
    fn(&mut <DB as Database>::Connection) -> BoxFuture<'_, Result<(), sqlx::Error>>;

/// How long a transaction of ours in which no handler runs may hear nothing from us. Its statements
/// follow each other at once, so this is long; and it is short enough that whoever waits for its locks
/// goes on in time.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const ORPHAN_MILLIS: i64 = 1_500;

/// An open transaction on a connection of the pool.
pub struct OwnTransaction<DB: Backend> {
    connection: OwnConnection<DB>,
    restore: Option<Restore<DB>>,
}

impl<DB: Backend> OwnTransaction<DB> {
    pub(crate) async fn begin(
        lane: &Arc<Lane<DB>>,
        statement: SqlStr,
    ) -> Result<Self, OutboxError> {
        let mut connection = OwnConnection::acquire_to_write(lane).await?;
        DB::TransactionManager::begin(&mut connection, Some(statement)).await?;
        Ok(Self {
            connection,
            restore: None,
        })
    }

    /// For a transaction whose beginning changed the session: undoes that after its end.
    #[cfg(feature = "mysql")]
    pub(crate) fn restoring(mut self, restore: Restore<DB>) -> Self {
        self.restore = Some(restore);
        self
    }

    /// Others need not wait until it ends.
    pub(crate) fn leave_lane(&mut self) {
        self.connection.leave_lane();
    }

    /// Whether somebody may be about to end what its session does.
    pub(crate) fn may_be_ended(&self) -> bool {
        self.connection.may_be_ended()
    }

    pub(crate) async fn commit(mut self) -> Result<(), OutboxError> {
        DB::TransactionManager::commit(&mut self.connection).await?;
        self.give_back().await;
        Ok(())
    }

    pub(crate) async fn roll_back(mut self) -> Result<(), OutboxError> {
        DB::TransactionManager::rollback(&mut self.connection).await?;
        self.give_back().await;
        Ok(())
    }

    /// The transaction has ended, whatever comes now: a session that cannot be restored is closed.
    async fn give_back(mut self) {
        let restored = match self.restore {
            Some(restore) => restore(&mut self.connection).await.is_ok(),
            None => true,
        };
        if restored {
            self.connection.give_back();
        }
    }
}

impl<DB: Backend> fmt::Debug for OwnTransaction<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("OwnTransaction");
        fields
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl<DB: Backend> Deref for OwnTransaction<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Backend> DerefMut for OwnTransaction<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}
