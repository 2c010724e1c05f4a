//! The tables: made, checked and removed, from code or as plain SQL for those whose administrator runs
//! it.

use sqlx::Pool;

use crate::backend::{Backend, Direction, StatementSet as _, Store, TablePrefix, TimeSource};
use crate::error::OutboxError;

/// The outbox's tables in one database.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// # fn show() -> Result<(), outbox::OutboxError> {
/// use outbox::{Schema, TablePrefix};
///
/// // For an administrator who wants to read it first:
/// println!("{}", Schema::<sqlx::Postgres>::up_sql(&TablePrefix::default()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Schema<DB: Backend> {
    store: Store<DB>,
}

impl<DB: Backend> Schema<DB> {
    /// The version this library works with.
    pub const VERSION: u32 = crate::backend::SCHEMA_VERSION;

    /// The tables with this prefix, which need not be there yet.
    pub fn new(pool: Pool<DB>, prefix: &TablePrefix) -> Self {
        let store = Store::new(pool, prefix, TimeSource::Clock);
        Self { store }
    }

    /// The version that is there; 0 when there is none.
    pub async fn version(&self) -> Result<u32, OutboxError> {
        DB::schema_version(&self.store).await
    }

    /// Makes what is missing. Twice is once; of two processes at once one waits for the other; what
    /// was cut short is finished by the next.
    pub async fn up(&self) -> Result<(), OutboxError> {
        DB::migrate_up(&self.store).await
    }

    /// Removes everything, messages included. Never queues in front of producers for more than a
    /// moment: it gives way and tries again, and fails in the end if the tables are in use.
    pub async fn down(&self) -> Result<(), OutboxError> {
        DB::migrate_down(&self.store).await
    }

    /// What [`up`](Self::up) runs on an empty database. On PostgreSQL and SQLite it belongs in one
    /// transaction; on MySQL and MariaDB every statement can run again, and it is written for their
    /// command-line client: the lines with `DELIMITER` are not for the server.
    pub fn up_sql(prefix: &TablePrefix) -> String {
        DB::Statements::migration(prefix, Direction::Up)
    }

    /// What [`down`](Self::down) runs.
    pub fn down_sql(prefix: &TablePrefix) -> String {
        DB::Statements::migration(prefix, Direction::Down)
    }
}
