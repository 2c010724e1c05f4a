//! A transaction of ours that leaves nothing behind: whatever happens between its beginning and its
//! end, a dropped future, a panic, a lost reply, the connection is closed rather than given back to
//! the pool in an unknown state.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use crate::error::OutboxError;

/// An open transaction on a connection of the pool.
#[derive(Debug)]
pub struct OwnTransaction<DB: Database> {
    connection: PoolConnection<DB>,
    open: bool,
}

impl<DB: Database> OwnTransaction<DB> {
    pub(crate) async fn begin(pool: &Pool<DB>, statement: SqlStr) -> Result<Self, OutboxError> {
        let mut own = Self {
            connection: pool.acquire().await?,
            open: true,
        };
        DB::TransactionManager::begin(&mut own.connection, Some(statement)).await?;
        Ok(own)
    }

    pub(crate) async fn commit(mut self) -> Result<(), OutboxError> {
        DB::TransactionManager::commit(&mut self.connection).await?;
        self.open = false;
        Ok(())
    }

    pub(crate) async fn roll_back(mut self) -> Result<(), OutboxError> {
        DB::TransactionManager::rollback(&mut self.connection).await?;
        self.open = false;
        Ok(())
    }
}

impl<DB: Database> Deref for OwnTransaction<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for OwnTransaction<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}

impl<DB: Database> Drop for OwnTransaction<DB> {
    fn drop(&mut self) {
        if self.open {
            self.connection.close_on_drop();
        }
    }
}
