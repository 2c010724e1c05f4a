//! Creating the schema and removing it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::MySqlConnection;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, MySql, Row as _};

use super::{Statements, number_of};
use crate::backend::prefix::query;
use crate::backend::{Answer, Direction, StatementSet as _, Store, TablePrefix};
use crate::error::OutboxError;

/// How long a migration waits for another one.
const MIGRATION_WAIT_SECONDS: u32 = 60;
/// How often a migration tries to get a table that somebody uses, and how long it lets others pass.
const MIGRATION_TRIES: u32 = 20;
const MIGRATION_PAUSE: Duration = Duration::from_millis(500);

/// What the server answers to an account that may not: to a database, a table, a routine.
const DENIED: [u16; 3] = [1044, 1142, 1370];
const MIGRATION_PRIVILEGES: &str =
    "SELECT, INSERT, UPDATE, CREATE, DROP, CREATE ROUTINE and ALTER ROUTINE on the database";

pub(super) async fn migrate(store: &Store<MySql>, direction: Direction) -> Answer<()> {
    let mut connection = lock(store).await?;
    // What was removed in part is removed again; what is there is not created again.
    if direction == Direction::Up && version(&mut connection, &store.sql).await? > 0 {
        return Ok(());
    }
    change(&mut connection, &store.prefix, direction).await
}

/// A connection that changes the schema, alone among all processes. Its session is set up for that,
/// so it is closed in the end, which also gives the lock back.
pub(super) async fn lock(store: &Store<MySql>) -> Answer<PoolConnection<MySql>> {
    let mut connection = store.pool.acquire().await?;
    connection.close_on_drop();
    sqlx::raw_sql("SET SESSION lock_wait_timeout = 1")
        .execute(&mut *connection)
        .await?;
    let locked: Option<i64> = query!(store.sql.lock_schema)
        .bind(MIGRATION_WAIT_SECONDS)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    if locked == Some(1) {
        return Ok(connection);
    }
    let message = "another process has been changing the schema for too long";
    Err(sqlx::Error::Protocol(message.to_owned()).into())
}

/// Runs a migration, which can always run again. A table in use is waited for shortly, for producers
/// queue behind whoever waits, and then again.
async fn change(
    connection: &mut MySqlConnection,
    prefix: &TablePrefix,
    direction: Direction,
) -> Answer<()> {
    let migration: Arc<str> = undelimited(&Statements::migration(prefix, direction)).into();
    let mut tries = 1;
    loop {
        let change = sqlx::raw_sql(AssertSqlSafe(Arc::clone(&migration)));
        match change.execute(&mut *connection).await {
            Err(error) if tries < MIGRATION_TRIES && number_of(&error) == Some(1205) => tries += 1,
            Err(error) if number_of(&error).is_some_and(|number| DENIED.contains(&number)) => {
                let needed = MIGRATION_PRIVILEGES;
                return Err(OutboxError::MissingPrivilege { needed, error });
            }
            changed => return Ok(changed.map(drop)?),
        }
        tokio::time::sleep(MIGRATION_PAUSE).await;
    }
}

/// A migration is written for the command-line client, which has to be told where a procedure ends. The
/// server knows that by itself.
fn undelimited(migration: &str) -> String {
    let lines = migration.lines();
    let lines = lines.filter(|line| !line.starts_with("DELIMITER"));
    let lines = lines.map(|line| format!("{}\n", line.replace("END//", "END;")));
    lines.collect()
}

pub(super) async fn version(connection: &mut MySqlConnection, sql: &Statements) -> Answer<u32> {
    let tables: i64 = query!(sql.has_schema)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    if tables == 0 {
        return Ok(0);
    }
    let version: i64 = query!(sql.schema_version)
        .fetch_one(connection)
        .await?
        .try_get(0)?;
    Ok(u32::try_from(version).unwrap_or(0))
}
