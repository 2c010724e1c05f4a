//! `outbox audit`: who did what by hand, and why.

use std::time::SystemTime;

use serde_json::json;

use crate::Context;
use crate::connection::on;
use crate::failure::Failure;
use crate::format::{age, timestamp};
use crate::output::{Output, number, text};

/// Say who did what by hand, and why, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox audit
  outbox audit --limit 1000 --json | jq -r 'select(.action == \"skip\") | .reason'

What is decided on the dashboard or with this command is written down before it is done: pause, resume, skip,
repair, and what becomes of dead letters. The newest 10 000 entries are kept.")]
pub(crate) struct Args {
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
    /// Only those with a lower number: the page after one that ended with it
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    let log = on!(&outbox, handle => handle.outbox().audit_log(args.before, args.limit).await)?;
    if output.is_json() {
        return log.iter().try_for_each(|entry| {
            output.json(&json!({
                "id": entry.id,
                "at": timestamp(entry.at),
                "actor": entry.actor,
                "action": entry.action,
                "target": entry.target,
                "reason": entry.reason,
            }))
        });
    }
    if log.is_empty() {
        return output.line("nothing was done by hand");
    }
    let now = SystemTime::now();
    let rows: Vec<_> = log
        .iter()
        .map(|entry| {
            vec![
                number(entry.id),
                number(age(entry.at, now)),
                text(&entry.actor),
                text(&entry.action),
                text(&entry.target),
                text(&entry.reason),
            ]
        })
        .collect();
    output.table(&["id", "ago", "who", "did", "to", "why"], &rows)
}
