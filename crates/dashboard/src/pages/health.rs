//! What `outbox doctor` finds.

use askama::Template;
use outbox::{Finding, Severity};

use super::overview::Attention;
use super::{Frame, Shown, Visit, rendered};
use crate::words;

#[derive(Template)]
#[template(path = "health.html")]
struct HealthPage {
    frame: Frame,
    /// When it was asked.
    at: String,
    findings: Vec<Attention>,
    fine: Vec<(&'static str, String)>,
}

pub(crate) async fn show(visit: Visit) -> Shown {
    let office = &visit.office;
    let (at, findings) = office.watch.health().await?;
    let is_fine = |one: &&Finding| one.severity == Severity::Fine;
    let page = HealthPage {
        frame: visit.frame("health", "Health"),
        at: words::ago(at),
        findings: findings
            .iter()
            .filter(|one| !is_fine(one))
            .map(|one| Attention::new(one, &visit.base))
            .collect(),
        fine: findings
            .iter()
            .filter(is_fine)
            .map(|one| (one.check, one.found.clone()))
            .collect(),
    };
    Ok(rendered(&page))
}
