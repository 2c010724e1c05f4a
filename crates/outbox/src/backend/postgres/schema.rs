//! Creating the schema and removing it.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Postgres};

use super::{LOCK_NOT_AVAILABLE, Statements};
use crate::backend::{Answer, Backend as _, Direction, StatementSet as _, Store, TablePrefix};
use crate::error::OutboxError;

/// The code of a statement that the account may not run.
const INSUFFICIENT_PRIVILEGE: &str = "42501";
const MIGRATION_PRIVILEGES: &str = "CREATE on the schema, and to own what is in it already";
/// How long a migration waits for a table that somebody uses, how often, and how long it lets others
/// pass in between.
const MIGRATION_PATIENCE: &str = "SET LOCAL lock_timeout = '500ms'";
const MIGRATION_TRIES: u32 = 20;
const MIGRATION_PAUSE: Duration = Duration::from_millis(500);

/// Migrates, and tries again when a table is in use: whoever waits for a table's exclusive lock has
/// every producer queue up behind it, so nobody waits for long.
pub(super) async fn migrate(store: &Store<Postgres>, direction: Direction) -> Answer<()> {
    let mut tries = 1;
    loop {
        match try_migrate(store, direction).await {
            Err(OutboxError::Database(sqlx::Error::Database(error)))
                if tries < MIGRATION_TRIES
                    && error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) =>
            {
                tries += 1;
            }
            Err(OutboxError::Database(error)) if is_denied(&error) => {
                let needed = MIGRATION_PRIVILEGES;
                return Err(OutboxError::MissingPrivilege { needed, error });
            }
            answer => return answer,
        }
        tokio::time::sleep(MIGRATION_PAUSE).await;
    }
}

fn is_denied(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.as_deref() == Some(INSUFFICIENT_PRIVILEGE)
}

async fn try_migrate(store: &Store<Postgres>, direction: Direction) -> Answer<()> {
    let prefix = &store.prefix;
    let mut transaction = Postgres::begin(store, None).await?;
    lock(&mut transaction, prefix).await?;
    let there = version(&mut transaction, prefix).await? > 0;
    if there == (direction == Direction::Down) {
        Postgres::execute(&mut transaction, MIGRATION_PATIENCE).await?;
        let migration = AssertSqlSafe(Statements::migration(prefix, direction));
        Postgres::execute(&mut transaction, migration).await?;
    }
    transaction.commit().await
}

/// Two processes that start at once: one migrates, the other waits and finds it done.
pub(super) async fn lock(connection: &mut PgConnection, prefix: &TablePrefix) -> Answer<()> {
    sqlx::query("SELECT PG_ADVISORY_XACT_LOCK(HASHTEXTEXTENDED($1, 0))")
        .bind(format!("{prefix}schema"))
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn version(connection: &mut PgConnection, prefix: &TablePrefix) -> Answer<u32> {
    let name = format!("{prefix}schema");
    let there: bool = sqlx::query_scalar("SELECT TO_REGCLASS($1) IS NOT NULL")
        .bind(&name)
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(0);
    }
    let version = format!("SELECT version FROM {name}");
    let version: i32 = sqlx::query_scalar(AssertSqlSafe(version))
        .fetch_one(connection)
        .await?;
    Ok(u32::try_from(version).unwrap_or(0))
}
