//! Who did what by hand, and why.

use askama::Template;

use super::{Frame, Shown, Visit, rendered};
use crate::words;

/// Entries on a page.
const PAGE: u32 = 100;

struct Row {
    at: String,
    ago: String,
    actor: String,
    action: String,
    target: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<i64>,
}

pub(crate) async fn show(visit: Visit) -> Shown {
    let before = visit.asked.number("before");
    let mut log = visit.source().audit_log(before, PAGE + 1).await?;
    let more = log.len() > PAGE as usize;
    log.truncate(PAGE as usize);
    let page = AuditPage {
        frame: visit.frame("audit", "Audit log"),
        next: log.last().filter(|_| more).map(|last| last.id),
        rows: log
            .into_iter()
            .map(|entry| Row {
                at: words::moment(entry.at),
                ago: words::ago(entry.at),
                actor: entry.actor,
                action: entry.action,
                target: entry.target,
                reason: entry.reason,
            })
            .collect(),
    };
    Ok(rendered(&page))
}
