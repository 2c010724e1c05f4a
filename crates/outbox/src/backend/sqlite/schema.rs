//! Creating the schema and removing it.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Sqlite};

use super::Statements;
use crate::backend::{Answer, Backend as _, Direction, StatementSet as _, Store, TablePrefix};

pub(super) async fn migrate(store: &Store<Sqlite>, direction: Direction) -> Answer<()> {
    let prefix = &store.prefix;
    let mut transaction = Sqlite::begin(store, None).await?;
    let there = version(&mut transaction, prefix).await? > 0;
    if there == (direction == Direction::Down) {
        let migration = AssertSqlSafe(Statements::migration(prefix, direction));
        Sqlite::execute(&mut transaction, migration).await?;
    }
    transaction.commit().await
}

pub(super) async fn version(
    connection: &mut SqliteConnection,
    prefix: &TablePrefix,
) -> Answer<u32> {
    let there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    let name = format!("{prefix}schema");
    if sqlx::query(there)
        .bind(name)
        .fetch_optional(&mut *connection)
        .await?
        .is_none()
    {
        return Ok(0);
    }
    let version = format!("SELECT version FROM {prefix}schema");
    Ok(sqlx::query_scalar(AssertSqlSafe(version))
        .fetch_one(connection)
        .await?)
}
