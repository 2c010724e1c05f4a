//! `outbox dashboard`: what is stuck, since when, why, and what to press, in a browser.

use std::net::SocketAddr;

use serde_json::json;

use crate::Context;
use crate::connection::on;
use crate::failure::Failure;
use crate::output::Output;
use crate::server::{AccessArgs, Desks, Metrics, Readiness, Server, Shown};
use crate::signals::Signals;
use crate::telemetry::Telemetry;

/// What it is called unless somebody says otherwise.
const NAME: &str = "outbox";

/// Show the outbox in a browser
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dashboard                                   read-only, for this machine
  outbox dashboard --operator --payloads             with buttons, and with what is inside messages
  outbox dashboard --listen 0.0.0.0:8080 --users /etc/outbox/users

It looks at the database every two seconds, whoever watches. Beside the pages it serves /metrics for
Prometheus, /healthz (the process turns) and /readyz (the database answers). It speaks plain HTTP: beyond
this machine put it behind a proxy that speaks TLS. What is done on it is in the audit log, with who and why.")]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", value_parser = crate::format::address, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// What it is called on every page
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,
    #[command(flatten)]
    access: AccessArgs,
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let access = args.access.access()?;
    let desks = Desks::new([args.name.clone()], access.clone());
    let telemetry = Telemetry::start("info", output.is_json())?;
    let metrics = Metrics::install(&telemetry)?;
    let outbox = context.target.outbox().await?;
    let ready = Readiness::new([args.name.clone()]);
    let _asked = on!(&outbox, handle => {
        let outbox = handle.outbox();
        desks.open(&args.name, outbox.clone());
        ready.watch(&args.name, outbox.clone())
    });
    let shown = Shown {
        ready,
        desks: Some(desks),
    };
    let server = Server::of_desks(Some(metrics), access, args.listen, shown)?;
    let (address, serving) = server.start(args.listen).await?;
    let url = format!("http://{address}");
    if output.is_json() {
        output.json(&json!({ "url": url }))?;
    } else {
        output.line(format!("the dashboard is at {url} until Ctrl-C"))?;
    }
    // There is nothing to read again: the end of its terminal is its end too.
    signals.next().await;
    serving.abort();
    Ok(())
}
