//! What PostgreSQL knows of itself.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row as _};

use super::Session;
use super::signals;
use crate::backend::prefix::query;
use crate::backend::{Answer, Store};
use crate::health::{Finding, Transactions, Vitals, isolation};
use crate::patience::FIRST;

/// A slot that holds back so many transactions holds back the vacuum.
const SLOT_AGE: i64 = 10_000_000;
/// More dead rows than this, and than live ones, are a vacuum that does not keep up.
const DEAD_ROWS: i64 = 200_000;
/// A NOTIFY fails when the queue is full; long before somebody forgot to end a transaction.
const NOTIFICATIONS: f64 = 0.1;

pub(super) async fn vitals(store: &Store<Postgres>) -> Answer<Vitals> {
    let mut session = Session::open(store).await?;
    let row = query!(store.sql.vitals)
        .fetch_one(session.connection())
        .await?;
    session.end().await?;
    let oldest: (Option<i32>, Option<i64>) =
        (row.try_get("oldest_pid")?, row.try_get("oldest_seconds")?);
    let oldest = oldest.0.zip(oldest.1).map(|(pid, seconds)| {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        (i64::from(pid), Duration::from_secs(seconds))
    });
    let mut findings = findings(&row)?;
    // It needs a connection of its own, of which there may be none left.
    let own = tokio::time::timeout(FIRST, signals::has_own_session(store)).await;
    findings.push(match own {
        Ok(Ok(true)) => Finding::fine("signals", "processes hear each other at once"),
        Ok(Ok(false)) => Finding::notice(
            "signals",
            "a pooler stands before the database",
            "processes do not hear each other, and look every 80 ms instead. Give workers a direct \
             connection if that is too slow.",
        ),
        Ok(Err(_)) | Err(_) => Finding::notice(
            "signals",
            "no further connection could be made to try them",
            "processes that cannot listen look every 80 ms instead. See whether connections are left.",
        ),
    });
    let sees_all: bool = row.try_get("sees_all")?;
    let blind = (!sees_all).then_some("GRANT pg_read_all_stats");
    Ok(Vitals {
        now_millis: row.try_get("now_millis")?,
        transactions: Some(Transactions { oldest, blind }),
        connections: Some((row.try_get("connections")?, row.try_get("max_connections")?)),
        findings,
    })
}

fn findings(row: &PgRow) -> Result<Vec<Finding>, sqlx::Error> {
    let level: String = row.try_get("isolation")?;
    let mut findings = vec![isolation(&level, &["read committed"])];
    let prepared: i64 = row.try_get("prepared")?;
    if prepared > 0 {
        findings.push(Finding::problem(
            "prepared transactions",
            format!("{prepared} have waited for their second phase for over 5 minutes"),
            "they hold their messages back, and the vacuum. COMMIT or ROLLBACK PREPARED them: see \
             pg_prepared_xacts.",
        ));
    }
    let slot_age: Option<i64> = row.try_get("slot_age")?;
    if slot_age.is_some_and(|age| age > SLOT_AGE) {
        findings.push(Finding::problem(
            "replication slots",
            "a slot holds back the vacuum",
            "rows that are gone stay on disk, and everything gets slower. See pg_replication_slots; drop \
             a slot that nobody reads.",
        ));
    }
    let notifications: f64 = row.try_get("notifications")?;
    if notifications > NOTIFICATIONS {
        findings.push(Finding::problem(
            "notifications",
            format!(
                "the queue of notifications is {:.0} % full",
                notifications * 100.0
            ),
            "a session that listens has a transaction open for long. When it is full, commits that \
             notify fail. End that session.",
        ));
    }
    let autovacuum: bool = row.try_get("autovacuum")?;
    let dead: Option<i64> = row.try_get("dead_rows")?;
    let live: Option<i64> = row.try_get("live_rows")?;
    let (dead, live) = (dead.unwrap_or(0), live.unwrap_or(0));
    findings.push(if !autovacuum {
        Finding::problem(
            "vacuum",
            "autovacuum is off",
            "deleted messages stay on disk for ever, and reading gets slower. Turn it on.",
        )
    } else if dead > DEAD_ROWS && dead > live {
        Finding::problem(
            "vacuum",
            format!("{dead} deleted rows, and {live} live ones"),
            "the vacuum does not keep up, or something holds it back: an old transaction, a slot.",
        )
    } else {
        Finding::fine("vacuum", format!("{dead} deleted rows wait for it"))
    });
    let missing: Option<String> = row.try_get("missing_privileges")?;
    findings.push(match missing {
        None => Finding::fine("privileges", "this account may run workers"),
        Some(missing) => Finding::notice(
            "privileges",
            format!("this account lacks {missing}"),
            "fine for one that only enqueues; a worker needs them: docs/grants/postgres.sql.",
        ),
    });
    Ok(findings)
}
