//! `outbox relay --check`: every database and every broker is tried, and all that is wrong is said.

use std::path::Path;

use outbox::{Backend, Schema};
use outbox_sinks::Sink as _;
use serde_json::{Value, json};
use sqlx::Pool;

use super::serve::{PARTITIONS, queues};
use crate::config::{AnySink, Config, Database};
use crate::connection::{Place, on};
use crate::failure::{Code, Failure};
use crate::output::{Cell, Output, text};

/// What was tried, and how it is.
struct Tried {
    what: String,
    state: Result<String, Failure>,
}

pub(super) async fn run(
    path: &Path,
    config: &Config,
    sinks: &[AnySink],
    output: &mut Output,
) -> Result<(), Failure> {
    let mut all = Vec::new();
    for database in &config.databases {
        all.push(Tried {
            what: format!("database {}", database.name()),
            state: try_database(config, database).await,
        });
    }
    for (route, sink) in config.routes.iter().zip(sinks) {
        let queues: Vec<&str> = route.queues().collect();
        let reached = sink.check().await;
        all.push(Tried {
            what: format!("{} → {}", queues.join(", "), route.destination()),
            state: reached
                .map(|()| "ready".to_owned())
                .map_err(|reason| Failure::new(Code::Broker, reason)),
        });
    }
    if output.is_json() {
        let checks: Vec<Value> = all.iter().map(document).collect();
        output.json(&json!({ "checks": checks }))?;
    } else {
        let rows: Vec<_> = all.iter().map(row).collect();
        output.table(&["", ""], &rows)?;
    }
    let count = all.len();
    let mut failures = all.into_iter().filter_map(|tried| tried.state.err());
    let Some(first) = failures.next() else {
        return Ok(());
    };
    let wrong = failures.count() + 1;
    Err(Failure::new(
        first.code(),
        format!("{}: {wrong} of {count} cannot be used yet", path.display()),
    ))
}

/// What no waiting will mend, of the databases of a file that is read again.
pub(super) async fn never(config: &Config) -> Result<(), Failure> {
    for database in &config.databases {
        match try_database(config, database).await {
            Err(failure) if matches!(failure.code(), Code::Usage | Code::Schema) => {
                return Err(failure);
            }
            // One that is away comes back.
            _ => {}
        }
    }
    Ok(())
}

fn row(tried: &Tried) -> Vec<Cell> {
    let state = match &tried.state {
        Ok(state) => text(state),
        Err(failure) => text(failure.on_one_line()).alarming(true),
    };
    vec![text(&tried.what), state]
}

fn document(tried: &Tried) -> Value {
    match &tried.state {
        Ok(state) => json!({ "what": tried.what, "ok": true, "state": state }),
        Err(failure) => json!({ "what": tried.what, "ok": false, "state": failure.on_one_line() }),
    }
}

async fn try_database(config: &Config, database: &Database) -> Result<String, Failure> {
    let pool = Place::of(database).pool(2).await?;
    on!(pool, pool => try_outbox(&pool, config, database).await)
}

async fn try_outbox<DB: Backend>(
    pool: &Pool<DB>,
    config: &Config,
    database: &Database,
) -> Result<String, Failure> {
    let version = Schema::new(pool.clone(), database.prefix())
        .version()
        .await?;
    if version < Schema::<DB>::VERSION && database.migrate {
        let will = match version {
            0 => "made",
            _ => "brought up to date",
        };
        return Ok(format!("ready; its tables will be {will}"));
    }
    let known = queues(pool, database).await?;
    let mut notes = Vec::new();
    for (_, route) in config.routes_of(database) {
        for queue in route.queues() {
            let there = known.iter().find(|(name, _)| name.as_str() == queue);
            match (there, route.partitions()) {
                (Some((_, found)), Some(wanted)) if *found != wanted => {
                    let (found, wanted) = (found.count(), wanted.count());
                    notes.push(format!(
                        "{queue:?} has and keeps {found} partitions, not {wanted}"
                    ));
                }
                (Some(_), _) => {}
                (None, wanted) => {
                    let count = wanted.unwrap_or(PARTITIONS).count();
                    notes.push(format!(
                        "it will get the queue {queue:?} with {count} partitions"
                    ));
                }
            }
        }
    }
    Ok(match notes.is_empty() {
        true => "ready".to_owned(),
        false => format!("ready; {}", notes.join("; ")),
    })
}
