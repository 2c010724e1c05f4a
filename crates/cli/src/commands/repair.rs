//! `outbox repair`: after a restore, so that sequencing can go on.

use serde_json::json;

use crate::Context;
use crate::ask::Confirmation;
use crate::connection::on;
use crate::failure::Failure;
use crate::output::Output;

/// Let sequencing go on after the database was restored from a dump
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox repair --database-url postgres://owner@localhost/shop

PostgreSQL: a restored database, or one that was failed over logically, counts its transactions anew, and
the outbox refuses to sequence until this was run. Run it before producers write. What was settled after
the dump was taken is delivered again: no dump can know of it. Elsewhere there is nothing to repair.")]
pub(crate) struct Args {
    #[command(flatten)]
    confirmation: Confirmation,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    args.confirmation
        .ask("was this database restored, and are no producers writing yet")?;
    super::record(&outbox, "repair", "the numbers of messages", "").await?;
    let repaired = on!(&outbox, handle => handle.outbox().repair().await)?;
    if output.is_json() {
        return output.json(&json!({ "repaired": repaired }));
    }
    output.line(match repaired {
        0 => "nothing had to be repaired".to_owned(),
        repaired => format!("repaired: {repaired} messages"),
    })
}
