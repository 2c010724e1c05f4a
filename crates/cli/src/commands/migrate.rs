//! `outbox migrate`: the tables, made, removed, or as SQL for an administrator.

use clap::{Subcommand, ValueEnum};
use outbox::{Backend, OutboxError, Schema, TablePrefix};
use serde_json::json;
use sqlx::{MySql, Pool, Postgres, Sqlite};

use crate::Context;
use crate::ask::Confirmation;
use crate::connection::{Place, on};
use crate::failure::Failure;
use crate::output::Output;

/// Make, check or remove the outbox's tables
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox migrate up --database-url postgres://localhost/shop
  outbox migrate print mysql | less
  outbox migrate status || outbox migrate up

Exit codes of `status`: 0 the tables are those of this version, 4 they are not.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make what is missing; twice is once
    #[command(after_help = "Examples:
  outbox migrate up --database-url postgres://owner@localhost/shop")]
    Up,
    /// Remove the tables, and every message that is in them
    #[command(after_help = "Examples:
  outbox migrate down --table-prefix outbox_test_ --yes")]
    Down(Confirmation),
    /// Say which version is there
    #[command(after_help = "Examples:
  outbox migrate status || outbox migrate up")]
    Status,
    /// Print the SQL, for an administrator to read and run
    #[command(after_help = "Examples:
  outbox migrate print postgres > outbox.sql
  outbox migrate print mysql --down")]
    Print {
        /// For which database
        database: Kind,
        /// The SQL that removes everything, instead
        #[arg(long)]
        down: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Postgres,
    /// MySQL and MariaDB
    Mysql,
    Sqlite,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    if let What::Print { database, down } = args.what {
        let prefix = context.target.prefix()?;
        let sql = match database {
            Kind::Postgres => sql::<Postgres>(&prefix, down),
            Kind::Mysql => sql::<MySql>(&prefix, down),
            Kind::Sqlite => sql::<Sqlite>(&prefix, down),
        };
        return output.line(sql.trim_end());
    }
    let place = context.target.place()?;
    let pool = place.pool(1).await?;
    on!(pool, pool => migrate(args, pool, &place, output).await)
}

fn sql<DB: Backend>(prefix: &TablePrefix, down: bool) -> String {
    if down {
        Schema::<DB>::down_sql(prefix)
    } else {
        Schema::<DB>::up_sql(prefix)
    }
}

async fn migrate<DB: Backend>(
    args: &Args,
    pool: Pool<DB>,
    place: &Place,
    output: &mut Output,
) -> Result<(), Failure> {
    let prefix = place.prefix();
    let schema = Schema::new(pool, prefix);
    let before = schema.version().await?;
    match &args.what {
        What::Up => schema.up().await?,
        What::Down(confirmation) => {
            if before > Schema::<DB>::VERSION {
                // Whatever else is there, this version does not know it.
                let (found, expected) = (before, Schema::<DB>::VERSION);
                return Err(OutboxError::SchemaVersion { found, expected }.into());
            }
            if before > 0 {
                let question =
                    format!("remove the outbox's tables, {prefix}…, and all messages in them");
                confirmation.ask(&question)?;
                schema.down().await?;
            }
        }
        What::Status | What::Print { .. } => {}
    }
    let (found, needed) = (schema.version().await?, Schema::<DB>::VERSION);
    if output.is_json() {
        output.json(&json!({ "version": found, "needed": needed, "before": before }))?;
    } else {
        output.line(match (before, found) {
            (0, 0) => "there is no outbox here".to_owned(),
            (_, 0) => "removed".to_owned(),
            (before, found) if before == found => format!("version {found}"),
            (before, found) => format!("version {before} → {found}"),
        })?;
    }
    if matches!(args.what, What::Status) && found == 0 {
        return Err(place.no_outbox());
    }
    if matches!(args.what, What::Up | What::Status) && found != needed {
        return Err(OutboxError::SchemaVersion {
            found,
            expected: needed,
        }
        .into());
    }
    Ok(())
}
