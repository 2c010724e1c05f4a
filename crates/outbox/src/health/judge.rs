//! What the state of partitions and processes tells of what is wrong, in words.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::{Finding, ProcessStats};
use crate::stats::PartitionStats;

/// How long a message may wait where nothing fails and nothing is paused.
const WAITING: Duration = Duration::from_secs(30);

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
pub(super) fn judge<'a>(
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
    use crate::health::{self, Severity};
    use crate::message::time_of;

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
        let findings = health::findings(&stats, &[process("orders")], time_of(60_000));
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
        let findings = health::findings(&many, &[process("orders")], time_of(60_000));
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
}
