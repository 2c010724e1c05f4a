//! `outbox doctor`: what is wrong, what it means, and what to do about it.

use anstyle::{AnsiColor, Style};
use outbox::{Finding, Severity};
use serde_json::{Value, json};

use crate::Context;
use crate::connection::on;
use crate::failure::{Code, Failure};
use crate::output::{Output, on_one_line};

/// Look for what is wrong with the outbox and its database, and say what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox doctor
  outbox doctor --json | jq '.findings[] | select(.severity == \"problem\")'

Looks at: old transactions and what else holds back the vacuum, isolation, connections, clocks, a pooler in
between, privileges, partitions that fail or wait, leases of processes that are gone, dead letters. It
changes nothing. Exit code 1 if there is a problem; what is merely worth knowing is no problem.")]
pub(crate) struct Args {}

pub(crate) async fn run(context: &Context, output: &mut Output) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    let findings = on!(&outbox, handle => handle.outbox().health().await)?;
    let problems = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Problem)
        .count();
    if output.is_json() {
        let findings: Vec<Value> = findings.iter().map(document).collect();
        output.json(&json!({ "healthy": problems == 0, "findings": findings }))?;
    } else {
        findings
            .iter()
            .try_for_each(|finding| show(finding, output))?;
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::new(Code::No, "there is a problem")),
        problems => Err(Failure::new(
            Code::No,
            format!("there are {problems} problems"),
        )),
    }
}

fn show(finding: &Finding, output: &mut Output) -> Result<(), Failure> {
    let (mark, style) = match finding.severity {
        Severity::Fine => ("ok     ", AnsiColor::Green.on_default()),
        Severity::Notice => ("note   ", AnsiColor::Yellow.on_default()),
        Severity::Problem => ("PROBLEM", AnsiColor::Red.on_default().bold()),
    };
    let (check, found) = (finding.check, on_one_line(&finding.found));
    output.line(format!("{style}{mark}{style:#}  {check}: {found}"))?;
    if finding.advice.is_empty() {
        return Ok(());
    }
    let faint = Style::new().dimmed();
    output.line(format!("         {faint}{}{faint:#}", finding.advice))
}

fn document(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "severity": match finding.severity {
            Severity::Fine => "fine",
            Severity::Notice => "notice",
            Severity::Problem => "problem",
        },
        "queue": finding.queue,
        "partitions": finding.partitions,
        "found": finding.found,
        "advice": finding.advice,
    })
}
