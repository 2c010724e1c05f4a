//! What is wrong, what it means, and what to do about it. The databases measure, this file judges.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use crate::backend::Backend;
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
    /// Who has had a transaction open for longest, and for how long.
    pub(crate) oldest_transaction: Option<(i64, Duration)>,
    /// What lets this account see the transactions of others, if it cannot.
    pub(crate) blind: Option<&'static str>,
    /// How many connections there are, and how many there can be.
    pub(crate) connections: Option<(i64, i64)>,
    /// What only this database knows.
    pub(crate) findings: Vec<Finding>,
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

/// What is wrong with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble<'a> {
    Paused,
    /// Its head fails, for this reason.
    Failing(&'a str),
    /// No process handles its queue.
    Unhandled,
    /// Its head has waited for long.
    Slow,
    /// It is held by a process that shows no sign of life.
    Deserted(&'a str),
}

/// What the state of partitions and processes tells, by this clock. The worst is not first.
fn judge<'a>(
    stats: &'a [PartitionStats],
    processes: &[ProcessStats],
    now: SystemTime,
) -> Vec<Finding> {
    let age = |since: SystemTime| now.duration_since(since).unwrap_or_default();
    // One without a handler delivers nothing.
    let alive = processes
        .iter()
        .filter(|process| process.is_alive() && !process.queues.is_empty());
    let alive: Vec<&ProcessStats> = alive.collect();
    let handled: HashSet<&str> = alive
        .iter()
        .flat_map(|process| process.queues.iter().map(String::as_str))
        .collect();
    let holders: HashSet<&str> = alive.iter().map(|process| &*process.incarnation).collect();
    let of_partition = |one: &'a PartitionStats| {
        let waits = one.pending() > 0 || one.unsequenced;
        if one.paused {
            Some(Trouble::Paused)
        } else if one.attempts > 0 {
            let error = one.last_error.as_deref();
            Some(Trouble::Failing(error.unwrap_or("no reason was given")))
        } else if waits && !handled.contains(one.queue.as_str()) {
            Some(Trouble::Unhandled)
        } else {
            let waiting = one.head_created_at.map(age).unwrap_or_default();
            (one.pending() > 0 && waiting > WAITING).then_some(Trouble::Slow)
        }
    };
    let of_holder = |one: &'a PartitionStats| {
        let gone = |holder: &&str| !holders.contains(holder) && !holder.starts_with("operator-");
        let holder = one.holder.as_deref().filter(gone);
        holder.map(Trouble::Deserted)
    };
    // What is the same of several partitions of a queue is said once.
    let mut troubles: Vec<(Trouble<'_>, Vec<&PartitionStats>)> = Vec::new();
    for one in stats {
        for trouble in [of_partition(one), of_holder(one)].into_iter().flatten() {
            let same = troubles
                .iter_mut()
                .find(|(other, partitions)| *other == trouble && partitions[0].queue == one.queue);
            match same {
                Some((_, partitions)) => partitions.push(one),
                None => troubles.push((trouble, vec![one])),
            }
        }
    }
    let troubles = troubles.into_iter();
    let mut findings: Vec<_> = troubles
        .map(|(trouble, partitions)| trouble.told(&partitions, now))
        .collect();
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

impl Trouble<'_> {
    /// In words, of these partitions of one queue.
    fn told(self, partitions: &[&PartitionStats], now: SystemTime) -> Finding {
        let several = partitions.len() > 1;
        let is = if several { "are" } else { "is" };
        let place = place(partitions);
        let pending: i64 = partitions.iter().map(|one| one.pending()).sum();
        let heads = partitions.iter().filter_map(|one| one.head_created_at);
        let oldest = heads.min().and_then(|head| now.duration_since(head).ok());
        let waits = format!(
            "{pending} messages wait, the oldest for {} s",
            oldest.unwrap_or_default().as_secs()
        );
        let mut finding = match self {
            Self::Paused => {
                let advice = "somebody paused it; `outbox resume` lets it go on.";
                Finding::notice("paused", format!("{place} {is} paused: {waits}"), advice)
            }
            Self::Failing(error) => {
                let most = partitions.iter().map(|one| one.attempts).max().unwrap_or(0);
                let failed = match several {
                    false => format!("has failed {most} times"),
                    true => format!("have failed up to {most} times each"),
                };
                Finding::problem(
                    "failing",
                    format!("{place} {failed}: {error}"),
                    "nothing behind its first message is delivered until that is. Look at it with \
                     `outbox peek`; fix the cause, or put it into the dead letters with `outbox skip`.",
                )
            }
            Self::Unhandled => Finding::problem(
                "waiting",
                format!("{place}: messages wait, and no process handles the queue"),
                "start one that has a handler for it.",
            ),
            Self::Slow => Finding::problem(
                "waiting",
                format!("{place}: {waits}; whoever holds it is slow, or stuck"),
                "look at the process that holds it (`outbox status`), and at its handler.",
            ),
            Self::Deserted(holder) => Finding::notice(
                "leases",
                format!("{place} {is} held by {holder}, which shows no sign of life"),
                "it is replaced when its lease has run out, if another process handles the queue.",
            ),
        };
        finding.queue = partitions.first().map(|one| one.queue.clone());
        finding.partitions = partitions.iter().map(|one| one.partition).collect();
        finding
    }
}

/// How many partitions are named.
const NAMED: usize = 6;

/// The partitions in words.
fn place(partitions: &[&PartitionStats]) -> String {
    let queue = partitions.first().map_or("", |one| &one.queue);
    let named: Vec<_> = partitions
        .iter()
        .take(NAMED)
        .map(|one| one.partition.to_string())
        .collect();
    match partitions.len() {
        1 => format!("partition {} of {queue}", named[0]),
        2..=NAMED => format!("partitions {} of {queue}", named.join(", ")),
        many => format!("{many} partitions of {queue} ({} …)", named.join(", ")),
    }
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
            lease_until: None,
            epoch: 1,
            dead_letters: 0,
        }
    }

    fn process(queue: &str) -> ProcessStats {
        ProcessStats {
            incarnation: "p".to_owned(),
            queues: vec![queue.to_owned()],
            host: "here:1".to_owned(),
            version: "1.0.0".to_owned(),
            started_at: time_of(0),
            seen_at: time_of(60_000),
            asked_at: time_of(60_000),
        }
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
    fn what_is_the_same_of_several_partitions_is_said_once() {
        let failing = |partition, error: &str| PartitionStats {
            partition,
            attempts: partition,
            last_error: Some(error.to_owned()),
            ..super::tests::partition()
        };
        let stats = [
            failing(1, "refused"),
            failing(2, "timeout"),
            failing(3, "refused"),
        ];
        let findings = findings(&stats, &[process("orders")], time_of(60_000));
        let told: Vec<_> = findings.iter().map(|one| &*one.found).take(2).collect();
        assert_eq!(
            told,
            [
                "partitions 1, 3 of orders have failed up to 3 times each: refused",
                "partition 2 of orders has failed 2 times: timeout"
            ]
        );
        assert_eq!(findings[0].queue.as_deref(), Some("orders"));
        assert_eq!(findings[0].partitions, [1, 3]);
        let many: Vec<_> = (0..64).map(|n| failing(n, "refused")).collect();
        let findings = super::findings(&many, &[process("orders")], time_of(60_000));
        // One of them has not failed yet, and waits.
        assert!(
            findings[0]
                .found
                .starts_with("63 partitions of orders (1, 2, 3, 4, 5, 6 …)")
                || findings[1]
                    .found
                    .starts_with("63 partitions of orders (1, 2, 3, 4, 5, 6 …)")
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
