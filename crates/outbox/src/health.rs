//! What is wrong, what it means, and what to do about it. The databases measure; what partitions and
//! processes tell is in `judge`.

mod judge;

use std::time::{Duration, SystemTime};

use crate::backend::Backend;
use crate::error::OutboxError;
use crate::message::time_of;
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};
use crate::stats::PartitionStats;
use crate::workers::keeper::ALIVE_MILLIS;
use judge::judge;

/// A transaction that is open for longer is somebody's mistake.
const LONG_TRANSACTION: Duration = Duration::from_secs(300);
/// What two clocks may differ by.
const CLOCKS: Duration = Duration::from_secs(2);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Notice,
    /// Somebody should do something.
    Problem,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at; stable, for programs.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What that means, and what to do; nothing where all is fine.
    pub advice: String,
    /// The queue it is about, if it is about one.
    pub queue: Option<String>,
    /// The partitions of that queue it is about.
    pub partitions: Vec<u32>,
}

impl Finding {
    pub(crate) fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Fine, found, "")
    }

    pub(crate) fn notice(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(check, Severity::Notice, found, advice)
    }

    pub(crate) fn problem(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(check, Severity::Problem, found, advice)
    }

    fn new(
        check: &'static str,
        severity: Severity,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            check,
            severity,
            found: found.into(),
            advice: advice.into(),
            queue: None,
            partitions: Vec::new(),
        }
    }
}

/// A process that runs, or ran until a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessStats {
    /// Its identity: drawn anew at every start.
    pub incarnation: String,
    /// The queues it has a handler for.
    pub queues: Vec<String>,
    /// The machine it runs on and its number there, as in `web-3:4711`.
    pub host: String,
    /// The version of this library it was built with.
    pub version: String,
    /// When it started, by the database's clock.
    pub started_at: SystemTime,
    /// When it last said that it is alive, by the database's clock.
    pub seen_at: SystemTime,
    /// When this was asked, by the database's clock: how long it has been silent does not depend on ours.
    pub asked_at: SystemTime,
}

impl ProcessStats {
    /// Whether it has said so lately: if not, it is replaced when its leases run out.
    pub fn is_alive(&self) -> bool {
        self.silent_for() <= Duration::from_millis(ALIVE_MILLIS.into())
    }

    /// How long ago it last said that it is alive.
    pub fn silent_for(&self) -> Duration {
        let silent = self.asked_at.duration_since(self.seen_at);
        silent.unwrap_or_default()
    }
}

/// What a database measured of itself. What it cannot know is left out.
#[derive(Debug, Clone, Default)]
pub struct Vitals {
    /// Its clock, in milliseconds.
    pub(crate) now_millis: i64,
    /// The transactions that are open.
    pub(crate) transactions: Option<Transactions>,
    /// How many connections there are, and how many there can be.
    pub(crate) connections: Option<(i64, i64)>,
    /// What only this database knows.
    pub(crate) findings: Vec<Finding>,
}

/// The transactions that are open in a database.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transactions {
    /// Who has had one open for longest, and for how long.
    pub(crate) oldest: Option<(i64, Duration)>,
    /// What lets this account see those of others, if it cannot.
    pub(crate) blind: Option<&'static str>,
}

/// What is wrong, going by the state of partitions and processes alone: what [`Outbox::health`] says without
/// asking the database about itself. The worst first; and what is fine. Ages go by `now`.
pub fn findings(
    stats: &[PartitionStats],
    processes: &[ProcessStats],
    now: SystemTime,
) -> Vec<Finding> {
    let mut findings = judge(stats, processes, now);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl<DB: Backend> Outbox<DB> {
    /// The processes that have said that they are alive, and have not been forgotten yet.
    pub async fn processes(&self) -> Result<Vec<ProcessStats>, OutboxError> {
        let roster = DB::roster(&self.engine.store);
        answer_within(OPERATOR_PATIENCE, roster).await
    }

    /// What is wrong, the worst first; and what was looked at and is fine.
    pub async fn health(&self) -> Result<Vec<Finding>, OutboxError> {
        let vitals = answer_within(OPERATOR_PATIENCE, DB::vitals(&self.engine.store)).await?;
        let (now, ours) = (time_of(vitals.now_millis), SystemTime::now());
        let (stats, processes) = (self.stats().await?, self.processes().await?);
        let mut findings = vec![clocks(now, ours)];
        findings.extend(vitals.transactions.map(transactions));
        findings.extend(vitals.connections.map(connections));
        findings.extend(vitals.findings);
        findings.extend(judge(&stats, &processes, now));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(findings)
    }
}

fn clocks(database: SystemTime, ours: SystemTime) -> Finding {
    let difference = database.duration_since(ours);
    let difference = difference.unwrap_or_else(|behind| behind.duration());
    if difference <= CLOCKS {
        return Finding::fine("clock", "the database's clock is ours");
    }
    Finding::notice(
        "clock",
        format!("the clocks of the database and of this machine differ by {difference:.0?}"),
        "leases go by the database's clock alone, so nothing breaks; ages shown here may be off. Run NTP \
         on both.",
    )
}

fn transactions(open: Transactions) -> Finding {
    match open.oldest {
        Some((session, age)) if age > LONG_TRANSACTION => Finding::problem(
            "transactions",
            format!(
                "session {session} has had a transaction open for {} s",
                age.as_secs()
            ),
            "its own messages are not delivered before it commits, and nothing that was deleted since \
             can be cleaned up: the outbox gets slower. Find out who it is, and end it.",
        ),
        _ => match open.blind {
            None => Finding::fine("transactions", "none is open for long"),
            Some(grant) => Finding::notice(
                "transactions",
                "this account may not see those of others",
                format!("{grant} lets it."),
            ),
        },
    }
}

/// What the transactions of this account are unless they say otherwise, and whether that is usual here.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn isolation(level: &str, usual: &[&str]) -> Finding {
    let level = level.to_lowercase().replace('-', " ");
    let found = format!("transactions of this account are {level} unless they say otherwise");
    if usual.contains(&&*level) {
        return Finding::fine("isolation", found);
    }
    let theirs = match &*level {
        "read uncommitted" => "Those of the application may act on what is rolled back later.",
        _ => {
            "Those of the application that enqueue may be refused for what else they do, and have to be \
             run again."
        }
    };
    let ours = "it means nothing to the outbox, whose transactions say what they are";
    Finding::notice("isolation", found, format!("{ours}. {theirs}"))
}

fn connections((used, most): (i64, i64)) -> Finding {
    let found = format!("{used} of {most} are in use");
    if used * 10 > most * 9 {
        let advice = "processes that start, or lose contact, may find none. Raise the server's limit, \
                      shrink pools, or put a pooler in between.";
        return Finding::problem("connections", found, advice);
    }
    Finding::fine("connections", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    #[test]
    fn an_isolation_that_is_unusual_is_worth_knowing() {
        let usual = ["read committed", "repeatable read"];
        assert_eq!(
            isolation("REPEATABLE-READ", &usual).severity,
            Severity::Fine
        );
        let serializable = isolation("serializable", &usual);
        assert_eq!(serializable.severity, Severity::Notice);
        assert!(serializable.found.contains("are serializable unless"));
        assert!(serializable.advice.contains("refused"));
        let dirty = isolation("READ-UNCOMMITTED", &usual);
        assert!(dirty.advice.contains("rolled back"));
    }

    #[test]
    fn limits_are_where_they_should_be() {
        assert_eq!(connections((90, 100)).severity, Severity::Fine);
        assert_eq!(connections((91, 100)).severity, Severity::Problem);
        let after = |seconds| {
            let oldest = Some((1, Duration::from_secs(seconds)));
            let blind = None;
            transactions(Transactions { oldest, blind }).severity
        };
        assert_eq!(
            (after(300), after(301)),
            (Severity::Fine, Severity::Problem)
        );
        let skew = |millis: i64| clocks(time_of(10_000 + millis), time_of(10_000)).severity;
        assert_eq!(
            (skew(-2_000), skew(2_001)),
            (Severity::Fine, Severity::Notice)
        );
    }
}
