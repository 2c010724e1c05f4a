//! Under what conditions figures were taken: printed with them, for without they mean nothing.

use std::fmt::Write as _;

use anyhow::Result;
use bench_contract::{Database, Task};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, Row as _};

use crate::budget::Budget;
use crate::fresh::admin_url;
use crate::options::name_of;

const POSTGRES: [&str; 6] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
];
const MYSQL: [&str; 5] = [
    "version",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "innodb_doublewrite",
    "innodb_buffer_pool_size",
];

pub(crate) async fn conditions(databases: &[(Database, Budget)]) -> Result<String> {
    let mut out = String::new();
    let task = Task::new(Database::Sqlite, "");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<_> = load.split_whitespace().take(3).collect();
    writeln!(
        out,
        "{cores} cores, load before the first run {}",
        load.join(" ")
    )?;
    writeln!(
        out,
        "pool of {} connections per process for everyone, no ping on checkout, payload {} B \
         unless said otherwise, 16 partitions unless said otherwise",
        task.pool, task.payload_bytes
    )?;
    writeln!(
        out,
        "sqlx 0.9 for floor and ours; cf-modkit-db 0.8.2 (sqlx 0.8) for the reference; profile \
         high_throughput, low_latency where latency is measured"
    )?;
    for (database, budget) in databases {
        let settings = match database {
            Database::Postgres => postgres().await?,
            Database::MariaDb | Database::MySql => mysql(*database).await?,
            Database::Sqlite => sqlite().await?,
        };
        writeln!(
            out,
            "{}: {settings}; {} runs, floor reads {} at once, backlog {}, enqueue {:?}, end to end {:?}, latency {:?}",
            name_of(*database),
            budget.runs,
            budget.floor_batch,
            budget.backlog,
            budget.enqueue,
            budget.end_to_end,
            budget.latency
        )?;
    }
    Ok(out)
}

async fn postgres() -> Result<String> {
    let mut connection = PgConnection::connect(&admin_url(Database::Postgres)?).await?;
    let mut settings = Vec::new();
    for name in POSTGRES {
        let row = sqlx::query("SELECT current_setting($1)").bind(name);
        let value: String = row.fetch_one(&mut connection).await?.get(0);
        settings.push(format!("{name} {value}"));
    }
    Ok(settings.join(", "))
}

async fn mysql(database: Database) -> Result<String> {
    let mut connection = MySqlConnection::connect(&admin_url(database)?).await?;
    let mut settings = Vec::new();
    for name in MYSQL {
        let select = format!("SELECT CAST(@@{name} AS CHAR)");
        let row = sqlx::query(AssertSqlSafe(select))
            .fetch_one(&mut connection)
            .await?;
        settings.push(format!("{name} {}", row.get::<String, _>(0)));
    }
    Ok(settings.join(", "))
}

async fn sqlite() -> Result<String> {
    let mut connection = sqlx::SqliteConnection::connect("sqlite::memory:").await?;
    let row = sqlx::query("SELECT sqlite_version()")
        .fetch_one(&mut connection)
        .await?;
    let version: String = row.get(0);
    Ok(format!(
        "version {version}, journal_mode WAL, synchronous FULL, busy_timeout 10 s"
    ))
}
