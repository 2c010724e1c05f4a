//! What MySQL and MariaDB know of themselves.

use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, Row as _};

use super::Statements;
use crate::backend::prefix::query;
use crate::backend::{Answer, OwnConnection, Store};
use crate::health::{Transactions, Vitals, isolation};

/// What nobody need be told of: a server's own default, and what the outbox uses.
const USUAL: [&str; 2] = ["repeatable read", "read committed"];

/// What an account without the privilege PROCESS is told.
const DENIED: u16 = 1227;

pub(super) async fn vitals(store: &Store<MySql>) -> Answer<Vitals> {
    let mut own = OwnConnection::acquire(&store.workers).await?;
    let row = query!(store.sql.vitals).fetch_one(&mut *own).await?;
    let used = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
        .fetch_optional(&mut *own)
        .await?;
    let used: Option<String> = match used {
        Some(row) => row.try_get(1)?,
        None => None,
    };
    let used: Option<i64> = used.and_then(|used| used.parse().ok());
    let level = isolation_level(&mut own).await?;
    let mut blind = None;
    let oldest = match oldest(&store.sql, &mut own).await {
        Ok(oldest) => oldest,
        Err(sqlx::Error::Database(error))
            if error
                .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
                .is_some_and(|error| error.number() == DENIED) =>
        {
            blind = Some("GRANT PROCESS ON *.*");
            None
        }
        Err(error) => return Err(error.into()),
    };
    own.give_back();
    let most: i64 = row.try_get("max_connections")?;
    Ok(Vitals {
        now_millis: row.try_get("now_millis")?,
        transactions: Some(Transactions { oldest, blind }),
        connections: used.map(|used| (used, most)),
        findings: level
            .map(|level| isolation(&level, &USUAL))
            .into_iter()
            .collect(),
    })
}

/// What this session's transactions are unless they say otherwise.
pub(super) async fn isolation_level(connection: &mut MySqlConnection) -> Answer<Option<String>> {
    // It has another name on each of the two.
    let level = sqlx::raw_sql(
        "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')",
    );
    let level = level.fetch_optional(connection).await?;
    Ok(level.map(|row| row.try_get(1)).transpose()?)
}

async fn oldest(
    sql: &Statements,
    connection: &mut MySqlConnection,
) -> Result<Option<(i64, Duration)>, sqlx::Error> {
    query!(sql.oldest_transaction)
        .try_map(|row: MySqlRow| {
            let seconds: i64 = row.try_get(1)?;
            let seconds = u64::try_from(seconds).unwrap_or(0);
            Ok((row.try_get(0)?, Duration::from_secs(seconds)))
        })
        .fetch_optional(connection)
        .await
}
