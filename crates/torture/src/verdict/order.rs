//! Whether numbers, places and epochs are in order.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Invariant, Place, Verdict};
use crate::evidence::{Evidence, Look};
use crate::ledger::Delivery;
use crate::script::Queue;

/// Nothing begins before everything in front of it is done, however often that has to be tried.
pub(super) fn nobody_overtakes(evidence: &Evidence, verdict: &mut Verdict) {
    let dead: HashSet<(i64, i64)> = evidence
        .dead
        .iter()
        .filter(|dead| dead.queue == Queue::Leased)
        .map(|dead| (dead.partition, dead.seq))
        .collect();
    let mut events: Vec<(i64, bool, &Delivery)> = Vec::new();
    for delivery in &evidence.deliveries {
        events.push((delivery.started_nanos, true, delivery));
        let is_dead = dead.contains(&(delivery.partition, delivery.seq));
        if let Some(end) = delivery.end
            && (end.success || is_dead)
        {
            events.push((end.nanos, false, delivery));
        }
    }
    events.sort_by_key(|(nanos, _, _)| *nanos);
    let mut done: HashMap<i64, (i64, HashSet<i64>)> = HashMap::new();
    for (_, begins, delivery) in events {
        let (all_up_to, beyond) = done.entry(delivery.partition).or_default();
        if !begins {
            beyond.insert(delivery.seq);
            while beyond.remove(&(*all_up_to + 1)) {
                *all_up_to += 1;
            }
        } else if delivery.seq > *all_up_to + 1 {
            verdict.say(Invariant::DenseAndInOrder, || {
                format!("only {all_up_to} were done before {delivery:?}")
            });
        }
    }
}

pub(super) fn in_order(evidence: &Evidence, verdict: &mut Verdict) {
    let mut firsts: BTreeMap<(Queue, i64), Vec<i64>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for delivery in &evidence.deliveries {
        let partition = (Queue::Leased, delivery.partition);
        if seen.insert((partition, delivery.seq)) {
            firsts.entry(partition).or_default().push(delivery.seq);
        }
    }
    for effect in &evidence.effects {
        let partition = (Queue::Transactional, effect.partition);
        firsts.entry(partition).or_default().push(effect.seq);
    }
    for (partition, seqs) in &firsts {
        for pair in seqs.windows(2) {
            if pair[0] >= pair[1] {
                verdict.say(Invariant::DenseAndInOrder, || {
                    format!("{partition:?}: {} came after {}", pair[1], pair[0])
                });
            }
        }
    }
    for dead in &evidence.dead {
        let partition = (dead.queue, dead.partition);
        firsts.entry(partition).or_default().push(dead.seq);
    }
    for one in &evidence.partitions {
        let seqs = firsts
            .remove(&(one.queue, one.partition))
            .unwrap_or_default();
        let distinct: HashSet<i64> = seqs.into_iter().collect();
        for seq in 1..=one.last_seq {
            if !distinct.contains(&seq) {
                verdict.say(Invariant::DenseAndInOrder, || {
                    format!("no {seq} in {one:?}")
                });
            }
        }
        if let Some(seq) = distinct.iter().find(|seq| **seq > one.last_seq) {
            verdict.say(Invariant::DenseAndInOrder, || format!("{seq} in {one:?}"));
        }
    }
}

pub(super) fn producers_order(
    evidence: &Evidence,
    places: &HashMap<i64, Place>,
    verdict: &mut Verdict,
) {
    let mut lines: HashMap<(i64, Queue, i64), Vec<(i64, Place)>> = HashMap::new();
    for one in &evidence.committed {
        if let Some(place) = places.get(&one.id) {
            let line = (one.producer, one.queue, one.key);
            lines.entry(line).or_default().push((one.number, *place));
        }
    }
    for (line, mut numbers) in lines {
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            let ((_, before), (_, after)) = (pair[0], pair[1]);
            if before.1 != after.1 || before.2 >= after.2 {
                verdict.say(Invariant::ProducersOrder, || format!("{line:?}: {pair:?}"));
            }
        }
    }
}

pub(super) fn epochs(evidence: &Evidence, verdict: &mut Verdict) {
    let mut settled: BTreeMap<Place, i64> = BTreeMap::new();
    for effect in &evidence.effects {
        settled.insert(
            (Queue::Transactional, effect.partition, effect.seq),
            effect.epoch,
        );
    }
    for delivery in &evidence.deliveries {
        if delivery.succeeded() {
            let place = (Queue::Leased, delivery.partition, delivery.seq);
            let epoch = settled.entry(place).or_default();
            *epoch = delivery.epoch.max(*epoch);
        }
    }
    let mut last: Option<(Place, i64)> = None;
    for (place, epoch) in settled {
        if let Some((before, older)) = last
            && (before.0, before.1) == (place.0, place.1)
            && older > epoch
        {
            verdict.say(Invariant::EpochsGrow, || {
                format!("{before:?} under {older}, then {place:?} under {epoch}")
            });
        }
        last = Some((place, epoch));
    }
}

/// In how many looks in a row a lease has to have run out for it not to be renewed any more: as long as
/// another lease, for a transactional handler renews it when it commits.
const OVERDUE: usize = 8;

/// Who holds a lease and can renew it keeps it, and does renew it.
pub(super) fn kept_in_calm(evidence: &Evidence, verdict: &mut Verdict) {
    let looks = evidence.calm_looks();
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        let (from, to) = evidence.calm;
        if from < to && !evidence.halted_since_calm() {
            verdict.say(Invariant::EpochsGrow, || {
                "nobody could look at the leases in calm".to_owned()
            });
        }
        return;
    };
    let pairs = first.partitions.iter().zip(&last.partitions);
    let changes: i64 = pairs
        .map(|(before, after)| after.epoch - before.epoch)
        .sum();
    // A machine that halts for longer than a lease costs one each.
    let most = i64::try_from(first.partitions.len()).unwrap_or(i64::MAX);
    if changes > most {
        verdict.say(Invariant::EpochsGrow, || {
            format!("leases changed hands {changes} times for no reason")
        });
    }
    if evidence.halted_since_calm() {
        return;
    }
    for row in looks.windows(OVERDUE) {
        for (place, one) in row[0].partitions.iter().enumerate() {
            let is_overdue = |look: &&Look| {
                let same = look
                    .partitions
                    .get(place)
                    .filter(|it| it.epoch == one.epoch);
                same.is_some_and(|it| it.overdue)
            };
            if row.iter().all(is_overdue) {
                verdict.say(Invariant::EpochsGrow, || {
                    format!("nobody renewed the lease of {one:?}")
                });
            }
        }
    }
}
