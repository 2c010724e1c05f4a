//! What is wrong, what it means, and what to do about it. The databases measure, this file judges.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use crate::backend::{Backend, Incarnation};
use crate::error::OutboxError;
use crate::message::time_of;
use crate::outbox::Outbox;
use crate::patience::{OPERATOR_PATIENCE, answer_within};
use crate::stats::PartitionStats;
use crate::workers::keeper::ALIVE_MILLIS;

/// A transaction that is open for longer is somebody's mistake.
const LONG_TRANSACTION: Duration = Duration::from_secs(300);
/// How long a message may wait where nothing fails and nothing is paused.
const WAITING: Duration = Duration::from_secs(30);
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
    /// When it started, by the database's clock.
    pub started_at: SystemTime,
    /// When it last said that it is alive.
    pub seen_at: SystemTime,
}

impl ProcessStats {
    pub(crate) fn new(
        incarnation: Incarnation,
        queues: Vec<String>,
        started_at: i64,
        seen_at: i64,
    ) -> Self {
        Self {
            incarnation: incarnation.0,
            queues,
            started_at: time_of(started_at),
            seen_at: time_of(seen_at),
        }
    }
}

/// What a database measured of itself. What it cannot know is left out.
#[derive(Debug, Clone, Default)]
pub struct Vitals {
    /// Its clock, in milliseconds.
    pub(crate) now_millis: i64,
    /// Who has had a transaction open for longest, and for how long.
    pub(crate) oldest_transaction: Option<(i64, Duration)>,
    /// What lets this account see the transactions of others, if it cannot.
    pub(crate) blind: Option<&'static str>,
    /// How many connections there are, and how many there can be.
    pub(crate) connections: Option<(i64, i64)>,
    /// What only this database knows.
    pub(crate) findings: Vec<Finding>,
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
        let mut findings = vec![
            clocks(now, ours),
            transactions(vitals.oldest_transaction, vitals.blind),
        ];
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

fn transactions(oldest: Option<(i64, Duration)>, blind: Option<&str>) -> Finding {
    match oldest {
        Some((session, age)) if age > LONG_TRANSACTION => Finding::problem(
            "transactions",
            format!(
                "session {session} has had a transaction open for {} s",
                age.as_secs()
            ),
            "its own messages are not delivered before it commits, and nothing that was deleted since \
             can be cleaned up: the outbox gets slower. Find out who it is, and end it.",
        ),
        _ => match blind {
            None => Finding::fine("transactions", "none is open for long"),
            Some(grant) => Finding::notice(
                "transactions",
                "this account may not see those of others",
                format!("{grant} lets it."),
            ),
        },
    }
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

/// What the outbox's own tables tell.
fn judge(stats: &[PartitionStats], processes: &[ProcessStats], now: SystemTime) -> Vec<Finding> {
    let age = |since: SystemTime| now.duration_since(since).unwrap_or_default();
    let lately = Duration::from_millis(ALIVE_MILLIS.into());
    // One without a handler delivers nothing.
    let alive = processes
        .iter()
        .filter(|process| age(process.seen_at) <= lately && !process.queues.is_empty());
    let alive: Vec<&ProcessStats> = alive.collect();
    let handled: HashSet<&str> = alive
        .iter()
        .flat_map(|process| process.queues.iter().map(String::as_str))
        .collect();
    let holders: HashSet<&str> = alive.iter().map(|process| &*process.incarnation).collect();
    let mut findings = Vec::new();
    for one in stats {
        let place = format!("partition {} of {}", one.partition, one.queue);
        let waiting = one.head_created_at.map(age).unwrap_or_default();
        let waits = format!(
            "{} messages wait, the oldest for {} s",
            one.pending(),
            waiting.as_secs()
        );
        if one.paused {
            let advice = "somebody paused it; `outbox resume` lets it go on.";
            findings.push(Finding::notice(
                "paused",
                format!("{place} is paused: {waits}"),
                advice,
            ));
        } else if one.attempts > 0 {
            let error = one.last_error.as_deref().unwrap_or("no reason was given");
            findings.push(Finding::problem(
                "failing",
                format!("{place} has failed {} times: {error}", one.attempts),
                "nothing behind its first message is delivered until that is. Look at it with `outbox \
                 peek`; fix the cause, or put it into the dead letters with `outbox skip`.",
            ));
        } else if (one.pending() > 0 || one.unsequenced) && !handled.contains(one.queue.as_str()) {
            findings.push(Finding::problem(
                "waiting",
                format!("{place}: messages wait, and no process handles its queue"),
                "start one that has a handler for it.",
            ));
        } else if one.pending() > 0 && waiting > WAITING {
            findings.push(Finding::problem(
                "waiting",
                format!("{place}: {waits}; its process is slow, or stuck"),
                "look at the process that holds it (`outbox status`), and at its handler.",
            ));
        }
        if let Some(holder) = &one.holder
            && !holders.contains(holder.as_str())
            && !holder.starts_with("operator-")
        {
            let found = format!("{place} is held by {holder}, which shows no sign of life");
            let advice =
                "it is replaced when its lease has run out, if another process handles the queue.";
            findings.push(Finding::notice("leases", found, advice));
        }
    }
    let buried: u64 = stats.iter().map(|one| one.dead_letters).sum();
    findings.push(match buried {
        0 => Finding::fine("dead letters", "none waits for a decision"),
        buried => Finding::notice(
            "dead letters",
            format!("{buried} wait for a decision"),
            "see `outbox dead-letters list`, then requeue or discard them.",
        ),
    });
    let waits = stats.iter().any(|one| one.pending() > 0 || one.unsequenced);
    findings.push(match alive.len() {
        0 if waits => Finding::problem(
            "processes",
            "none is alive, and messages wait",
            "nothing is delivered until one starts.",
        ),
        0 => Finding::notice(
            "processes",
            "none is alive",
            "nothing is delivered until one starts.",
        ),
        alive => Finding::fine("processes", format!("{alive} alive")),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> PartitionStats {
        PartitionStats {
            queue: "orders".to_owned(),
            partition: 3,
            partition_id: 4,
            last_seq: 10,
            processed_seq: 8,
            unsequenced: false,
            head_created_at: Some(time_of(0)),
            attempts: 0,
            last_error: None,
            paused: false,
            holder: None,
            epoch: 1,
            dead_letters: 0,
        }
    }

    fn process(queue: &str) -> ProcessStats {
        let incarnation = Incarnation("p".to_owned());
        ProcessStats::new(incarnation, vec![queue.to_owned()], 0, 60_000)
    }

    /// The checks that found something, a minute after everything began.
    fn found(stats: &PartitionStats, processes: &[ProcessStats]) -> Vec<(&'static str, Severity)> {
        let findings = judge(std::slice::from_ref(stats), processes, time_of(60_000));
        let bad = findings.iter().filter(|one| one.severity > Severity::Fine);
        bad.map(|one| (one.check, one.severity)).collect()
    }

    #[test]
    fn a_partition_says_what_is_wrong_with_it() {
        use Severity::{Notice, Problem};
        let good = PartitionStats {
            processed_seq: 10,
            head_created_at: None,
            ..partition()
        };
        let works = [process("orders")];
        assert_eq!(found(&good, &works), []);
        assert_eq!(found(&partition(), &works), [("waiting", Problem)]);
        let nobody = [process("mail")];
        assert_eq!(found(&partition(), &nobody), [("waiting", Problem)]);
        let failing = PartitionStats {
            attempts: 2,
            ..partition()
        };
        assert_eq!(found(&failing, &works), [("failing", Problem)]);
        let paused = PartitionStats {
            paused: true,
            ..partition()
        };
        assert_eq!(found(&paused, &works), [("paused", Notice)]);
        let held = PartitionStats {
            holder: Some("gone".to_owned()),
            dead_letters: 2,
            ..good
        };
        assert_eq!(
            found(&held, &works),
            [("leases", Notice), ("dead letters", Notice)]
        );
        assert_eq!(found(&held, &[]).last(), Some(&("processes", Notice)));
        let unsequenced = PartitionStats {
            unsequenced: true,
            ..held
        };
        assert_eq!(
            found(&unsequenced, &[]).last(),
            Some(&("processes", Problem))
        );
    }

    #[test]
    fn limits_are_where_they_should_be() {
        assert_eq!(connections((90, 100)).severity, Severity::Fine);
        assert_eq!(connections((91, 100)).severity, Severity::Problem);
        let after = |seconds| transactions(Some((1, Duration::from_secs(seconds))), None).severity;
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
