//! What can be said of a run beside whether the promises were kept.

use std::collections::HashSet;

use crate::evidence::{Evidence, Look};
use crate::faults::Made;
use crate::producer::{Complaint, Kind};

/// What can be said of a run.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Figures {
    pub(crate) messages: usize,
    /// Those that found something to break.
    pub(crate) faults: usize,
    pub(crate) deliveries: usize,
    /// Of them, to leased handlers.
    pub(crate) leased: usize,
    /// Of leased messages, beyond the first of each.
    pub(crate) redeliveries: usize,
    pub(crate) dead_letters: usize,
    /// From a fault's end until every partition moved, in milliseconds, sorted.
    pub(crate) recoveries: Vec<i64>,
    /// The longest time in which a partition did not move.
    pub(crate) longest_stall: i64,
    /// How often producers found the server away.
    pub(crate) turned_away: usize,
    /// What announced messages took in the end, in the middle, in milliseconds.
    pub(crate) announced: i64,
}

/// Since when, and until when, a partition had work and did not move, going by the looks.
pub(crate) fn stalls(looks: &[Look]) -> Vec<Vec<(i64, i64)>> {
    let partitions = looks.first().map_or(0, |look| look.partitions.len());
    (0..partitions)
        .map(|place| {
            let mut stalls = Vec::new();
            let mut since: Option<(i64, i64)> = None;
            for look in looks {
                let Some(now) = look.partitions.get(place) else {
                    continue;
                };
                if let Some((from, stood_at)) = since
                    && stood_at != now.processed_seq
                {
                    stalls.push((from, look.at));
                    since = None;
                }
                if since.is_none() && now.processed_seq < now.last_seq {
                    since = Some((look.at, now.processed_seq));
                }
            }
            stalls
        })
        .collect()
}

pub(crate) fn figures(evidence: &Evidence) -> Figures {
    let stalls = stalls(&evidence.looks);
    // Who stood still when a fault was over, until when.
    let recovery = |made: &Made| {
        let over = |&&(from, to): &&(i64, i64)| from <= made.to && made.to < to;
        let ends = stalls.iter().filter_map(|stalls| stalls.iter().find(over));
        ends.map(|(_, to)| to - made.to).max()
    };
    let mut recoveries: Vec<i64> = evidence.faults.iter().filter_map(recovery).collect();
    recoveries.sort_unstable();
    let longest = stalls.iter().flatten().map(|(from, to)| to - from).max();
    let leased = evidence.deliveries.iter().map(|delivery| delivery.id);
    let distinct: HashSet<i64> = leased.collect();
    let away = |line: &&String| {
        let complaint = Complaint::read(line);
        complaint.is_some_and(|one| !matches!(one.kind, Kind::Hurt | Kind::Slow))
    };
    let away = evidence.said.iter().filter(away);
    Figures {
        messages: evidence.committed.len(),
        faults: evidence.faults.iter().filter(|made| made.hit).count(),
        leased: evidence.deliveries.len(),
        deliveries: evidence.deliveries.len() + evidence.effects.len(),
        redeliveries: evidence.deliveries.len() - distinct.len(),
        dead_letters: evidence.dead.len(),
        recoveries,
        longest_stall: longest.unwrap_or(0),
        turned_away: away.count(),
        announced: *evidence.waits.get(evidence.waits.len() / 2).unwrap_or(&0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Partition;
    use crate::script::Queue;

    #[test]
    fn a_stall_is_work_that_stands_still() {
        let look = |at, processed_seq, last_seq| Look {
            at,
            partitions: vec![Partition {
                queue: Queue::Leased,
                partition: 0,
                last_seq,
                processed_seq,
                epoch: 1,
                overdue: false,
            }],
        };
        // Nothing to do, then work that is done after 20, then work that is left.
        let looks = [
            look(0, 5, 5),
            look(10, 5, 7),
            look(20, 5, 7),
            look(30, 6, 7),
            look(40, 6, 7),
        ];
        assert_eq!(stalls(&looks), [vec![(10, 30)]]);
    }
}
