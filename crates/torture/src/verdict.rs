//! Whether the promises were kept, going by the evidence.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::evidence::{Committed, Evidence};
use crate::faults::Made;
use crate::figures::{Figures, figures, stalls};
use crate::ledger::Delivery;
use crate::producer::{self, Complaint, Kind, PROBE};
use crate::run::GRACE;
use crate::script::{Queue, Script};
use crate::worker::LEASE;

/// The most examples of one kind that are told.
const EXAMPLES: usize = 5;

/// How long after a fault's end a settlement may still be lost to it, in milliseconds.
const SETTLED_WITHIN: i64 = 2_000;

/// How long after a fault's end a producer may still find the server away, in milliseconds: it waits
/// five seconds for a connection.
const BACK_WITHIN: i64 = 7_000;

/// A machine that does not look at its database for so long may lose a lease, in milliseconds.
const HALT: i64 = 1_000;

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    Delivered,
    NothingElse,
    DenseAndInOrder,
    ProducersOrder,
    EpochsGrow,
    OneEffect,
    DeadLettersExact,
    MovesAgain,
    NothingLeft,
    AttemptsExplained,
    ProducersUnhurt,
    Prompt,
}

impl Invariant {
    pub(crate) const ALL: [Self; 12] = [
        Self::Delivered,
        Self::NothingElse,
        Self::DenseAndInOrder,
        Self::ProducersOrder,
        Self::EpochsGrow,
        Self::OneEffect,
        Self::DeadLettersExact,
        Self::MovesAgain,
        Self::NothingLeft,
        Self::AttemptsExplained,
        Self::ProducersUnhurt,
        Self::Prompt,
    ];

    pub(crate) const fn about(self) -> &'static str {
        match self {
            Self::Delivered => "I1  every committed message was delivered or dead-lettered",
            Self::NothingElse => "I2  nothing else was delivered, and nothing changed on the way",
            Self::DenseAndInOrder => "I3  numbers have no holes, and first deliveries are in order",
            Self::ProducersOrder => "I4  each producer's order per key was kept",
            Self::EpochsGrow => {
                "I5  who settles later has the higher epoch; without need none grows"
            }
            Self::OneEffect => "I6  exactly one effect per message",
            Self::DeadLettersExact => "I7  the dead letters are the poisons, once each",
            Self::MovesAgain => "I8  every partition moved again in time",
            Self::NothingLeft => "I9  no row, lease, process or connection was left behind",
            Self::AttemptsExplained => "I10 attempts are the failures and the crashes",
            Self::ProducersUnhurt => "I11 no producer saw an error of ours",
            Self::Prompt => "I12 what was announced came at once",
        }
    }
}

/// What was found of each invariant, and what can be said of the run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: BTreeMap<Invariant, Vec<String>>,
    pub(crate) figures: Figures,
}

impl Verdict {
    pub(crate) fn is_kept(&self) -> bool {
        self.violations.is_empty()
    }

    fn say(&mut self, invariant: Invariant, what: impl FnOnce() -> String) {
        self.violations.entry(invariant).or_default().push(what());
    }

    pub(crate) fn examples(&self, invariant: Invariant) -> (usize, &[String]) {
        let found = self
            .violations
            .get(&invariant)
            .map_or(&[][..], |found| found);
        (found.len(), &found[..found.len().min(EXAMPLES)])
    }
}

/// Where a message stood in its partition.
type Place = (Queue, i64, i64);

pub(crate) fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let by_order: HashMap<(i64, i64), &Committed> = evidence
        .committed
        .iter()
        .map(|one| ((one.producer, one.number), one))
        .collect();
    let places = places(evidence, &by_order, &mut verdict);
    delivered(evidence, &by_order, &mut verdict);
    in_order(evidence, &mut verdict);
    nobody_overtakes(evidence, &mut verdict);
    producers_order(evidence, &places, &mut verdict);
    epochs(evidence, &mut verdict);
    kept_in_calm(evidence, &mut verdict);
    effects(evidence, &by_order, &mut verdict);
    dead_letters(evidence, &mut verdict);
    moves_again(evidence, &mut verdict);
    attempts(evidence, &mut verdict);
    for left in &evidence.left {
        verdict.say(Invariant::NothingLeft, || left.clone());
    }
    producers_unhurt(evidence, &mut verdict);
    once_in_calm(evidence, &mut verdict);
    for setback in &evidence.setbacks {
        verdict.say(Invariant::EpochsGrow, || setback.clone());
    }
    for stuck in &evidence.stuck {
        verdict.say(Invariant::MovesAgain, || stuck.clone());
    }
    verdict.figures = figures(evidence);
    if verdict.figures.announced > evidence.at_once {
        verdict.say(Invariant::Prompt, || {
            format!("after {:?} ms", evidence.waits)
        });
    }
    verdict
}

/// Where each message was delivered, by its id. What was delivered without having been committed is a
/// phantom.
fn places(
    evidence: &Evidence,
    by_order: &HashMap<(i64, i64), &Committed>,
    verdict: &mut Verdict,
) -> HashMap<i64, Place> {
    let mut places = HashMap::new();
    for effect in &evidence.effects {
        match by_order.get(&(effect.producer, effect.number)) {
            Some(one) if one.queue == Queue::Transactional => {
                let place = (Queue::Transactional, effect.partition, effect.seq);
                places.insert(one.id, place);
            }
            _ => verdict.say(Invariant::NothingElse, || format!("{effect:?}")),
        }
    }
    for delivery in &evidence.deliveries {
        let one = delivery.order.and_then(|order| by_order.get(&order));
        match one {
            Some(one) if one.id == delivery.id && one.queue == Queue::Leased => {
                let place = (Queue::Leased, delivery.partition, delivery.seq);
                let other = places.insert(one.id, place);
                if other.is_some_and(|other| other != place) {
                    verdict.say(Invariant::DenseAndInOrder, || {
                        format!("a message changed its place from {other:?}: {delivery:?}")
                    });
                }
            }
            _ => verdict.say(Invariant::NothingElse, || format!("{delivery:?}")),
        }
    }
    let ids: HashSet<i64> = evidence.committed.iter().map(|one| one.id).collect();
    for dead in &evidence.dead {
        if ids.contains(&dead.id) {
            places.insert(dead.id, (dead.queue, dead.partition, dead.seq));
        } else {
            verdict.say(Invariant::NothingElse, || format!("{dead:?}"));
        }
    }
    places
}

fn delivered(
    evidence: &Evidence,
    by_order: &HashMap<(i64, i64), &Committed>,
    verdict: &mut Verdict,
) {
    // A handler writes its success down before it tells anybody.
    let acked = evidence
        .deliveries
        .iter()
        .filter(|delivery| delivery.end.is_some_and(|(_, success)| success));
    let mut done: HashSet<(i64, i64)> = acked.filter_map(|delivery| delivery.order).collect();
    done.extend(
        evidence
            .effects
            .iter()
            .map(|one| (one.producer, one.number)),
    );
    let dead: HashSet<i64> = evidence.dead.iter().map(|dead| dead.id).collect();
    for (order, one) in by_order {
        if !done.contains(order) && !dead.contains(&one.id) {
            verdict.say(Invariant::Delivered, || format!("{one:?}"));
        }
    }
    for line in &evidence.said {
        let Some((producer, numbers)) = producer::committed(line) else {
            continue;
        };
        for number in numbers {
            if !by_order.contains_key(&(producer, number)) {
                verdict.say(Invariant::Delivered, || {
                    format!("{number} of {producer} is not there although its commit succeeded")
                });
            }
        }
    }
}

/// Nothing begins before everything in front of it is done, however often that has to be tried.
fn nobody_overtakes(evidence: &Evidence, verdict: &mut Verdict) {
    let dead: HashSet<(i64, i64)> = evidence
        .dead
        .iter()
        .filter(|dead| dead.queue == Queue::Leased)
        .map(|dead| (dead.partition, dead.seq))
        .collect();
    // In one millisecond a partition goes forward: what ends comes before what begins.
    let mut events: Vec<(i64, bool, &Delivery)> = Vec::new();
    for delivery in &evidence.deliveries {
        events.push((delivery.start, true, delivery));
        let is_dead = dead.contains(&(delivery.partition, delivery.seq));
        if let Some((end, success)) = delivery.end
            && (success || is_dead)
        {
            events.push((end, false, delivery));
        }
    }
    events.sort_by_key(|(at, begins, delivery)| (*at, delivery.seq, *begins));
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

fn in_order(evidence: &Evidence, verdict: &mut Verdict) {
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

fn producers_order(evidence: &Evidence, places: &HashMap<i64, Place>, verdict: &mut Verdict) {
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

fn epochs(evidence: &Evidence, verdict: &mut Verdict) {
    let mut settled: BTreeMap<Place, i64> = BTreeMap::new();
    for effect in &evidence.effects {
        settled.insert(
            (Queue::Transactional, effect.partition, effect.seq),
            effect.epoch,
        );
    }
    for delivery in &evidence.deliveries {
        if delivery.end.is_some_and(|(_, success)| success) {
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

/// Who holds a lease and can renew it keeps it.
fn kept_in_calm(evidence: &Evidence, verdict: &mut Verdict) {
    let (from, to) = evidence.calm;
    let mut looks = evidence
        .looks
        .iter()
        .filter(|look| from <= look.at && look.at <= to);
    let (Some(first), Some(last)) = (looks.next(), looks.next_back()) else {
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
}

fn effects(evidence: &Evidence, by_order: &HashMap<(i64, i64), &Committed>, verdict: &mut Verdict) {
    let mut made: HashMap<(i64, i64), u32> = HashMap::new();
    for effect in &evidence.effects {
        *made.entry((effect.producer, effect.number)).or_default() += 1;
    }
    for (order, one) in by_order {
        let expected = u32::from(one.queue == Queue::Transactional && one.script != Script::Poison);
        let found = made.get(order).copied().unwrap_or(0);
        if found > expected {
            verdict.say(Invariant::OneEffect, || {
                format!("{found} effects of {one:?}")
            });
        }
    }
}

fn dead_letters(evidence: &Evidence, verdict: &mut Verdict) {
    let mut dead: HashMap<i64, u32> = HashMap::new();
    for one in &evidence.dead {
        *dead.entry(one.id).or_default() += 1;
    }
    for one in &evidence.committed {
        let expected = u32::from(one.script == Script::Poison);
        let found = dead.get(&one.id).copied().unwrap_or(0);
        if found != expected {
            verdict.say(Invariant::DeadLettersExact, || {
                format!("{found} dead letters of {one:?}")
            });
        }
    }
}

/// When each partition handled its probe.
fn probed(evidence: &Evidence) -> BTreeMap<(Queue, i64), i64> {
    let effects = evidence.effects.iter().map(|effect| {
        let partition = (Queue::Transactional, effect.partition);
        (effect.producer, partition, Some(effect.at))
    });
    let deliveries = evidence.deliveries.iter().map(|delivery| {
        let producer = delivery.order.map_or(-1, |order| order.0);
        let end = delivery.end.map(|(end, _)| end);
        (producer, (Queue::Leased, delivery.partition), end)
    });
    let mut probed = BTreeMap::new();
    for (producer, partition, at) in effects.chain(deliveries) {
        if let Some(at) = at.filter(|_| producer == PROBE) {
            let first = probed.entry(partition).or_insert(at);
            *first = at.min(*first);
        }
    }
    probed
}

/// How long a handler that hangs may keep its partition, in milliseconds: in a batch it is tried three times
/// before anything smaller is.
const HANGING: i64 = 6_000;

/// Every partition moves in time: when the faults are over, by those who lived through them; and in the
/// end, when nobody has, whatever is open beside it.
fn moves_again(evidence: &Evidence, verdict: &mut Verdict) {
    let bound = i64::try_from((LEASE.duration + GRACE).as_millis()).unwrap_or(i64::MAX);
    let (over, until) = evidence.spared;
    let mut looks = evidence.looks.iter();
    let partitions =
        looks.find_map(|look| Some(look.partitions.clone()).filter(|_| look.at > over));
    let names = partitions.into_iter().flatten();
    for (one, stalls) in names.zip(stalls(&evidence.looks)) {
        let stood = stalls.iter().filter(|(from, _)| *from < until);
        let stood = stood.map(|(from, to)| to - over.max(*from)).max();
        if let Some(stood) = stood.filter(|stood| *stood > bound + HANGING) {
            verdict.say(Invariant::MovesAgain, || {
                format!("{one:?} stood still for {stood} ms after the last fault")
            });
        }
    }
    let probed = probed(evidence);
    for one in &evidence.partitions {
        let partition = (one.queue, one.partition);
        let took = probed.get(&partition).map(|at| at - evidence.healed);
        if took.is_none_or(|took| took > bound) {
            verdict.say(Invariant::MovesAgain, || {
                format!("{partition:?} took {took:?} ms of {bound}")
            });
        }
    }
}

/// Where nothing fails and the machine does not halt, nothing is tried twice.
fn once_in_calm(evidence: &Evidence, verdict: &mut Verdict) {
    let (from, to) = evidence.calm;
    let looks = evidence.looks.iter().map(|look| look.at);
    let looks: Vec<i64> = looks.filter(|at| (from..=to).contains(at)).collect();
    if looks.windows(2).any(|pair| pair[1] - pair[0] > HALT) {
        return;
    }
    let effects = evidence.effects.iter();
    let effects = effects.map(|one| (one.at, one.attempts, format!("{one:?}")));
    let deliveries = evidence.deliveries.iter();
    let deliveries = deliveries.map(|one| (one.start, one.attempts, format!("{one:?}")));
    for (at, attempts, what) in effects.chain(deliveries) {
        if (from..to).contains(&at) && attempts > 0 {
            verdict.say(Invariant::AttemptsExplained, || format!("in calm: {what}"));
        }
    }
}

/// A producer finds the server away only when a fault has taken it away.
fn producers_unhurt(evidence: &Evidence, verdict: &mut Verdict) {
    for line in &evidence.said {
        let Some(complaint) = Complaint::read(line) else {
            continue;
        };
        let explained = |made: &Made| {
            let while_away = made.from..made.to + BACK_WITHIN;
            made.disturbs_producers() && while_away.contains(&complaint.at)
        };
        let blameless = match complaint.kind {
            Kind::Busy => true,
            Kind::Away => evidence.faults.iter().any(explained),
            Kind::Hurt => false,
        };
        if !blameless {
            verdict.say(Invariant::ProducersUnhurt, || line.clone());
        }
    }
}

/// An attempt more than before is explained by a failure or by a change of hands.
fn attempts(evidence: &Evidence, verdict: &mut Verdict) {
    let mut before: HashMap<i64, Vec<&crate::ledger::Delivery>> = HashMap::new();
    let mut first_epoch: HashMap<(i64, i64), i64> = HashMap::new();
    for delivery in &evidence.deliveries {
        first_epoch
            .entry((delivery.partition, delivery.seq))
            .or_insert(delivery.epoch);
    }
    for delivery in &evidence.deliveries {
        let earlier = before.entry(delivery.id).or_default();
        let failures = earlier
            .iter()
            .filter(|one| one.end.is_none_or(|(_, success)| !success));
        // Whoever took over from its predecessor's holder was charged before it could say so.
        let predecessor = first_epoch.get(&(delivery.partition, delivery.seq - 1));
        let hands = delivery.epoch - predecessor.copied().unwrap_or(0).min(delivery.epoch);
        let explained = i64::try_from(failures.count()).unwrap_or(i64::MAX) + hands;
        if delivery.attempts > explained {
            verdict.say(Invariant::AttemptsExplained, || {
                format!("{explained} explain too little of {delivery:?}")
            });
        }
        // What could not be written down because the network or the process failed was not counted.
        let disturbed = |worker: usize, from: i64| {
            let touches = |made: &Made| {
                let meanwhile = made.from <= delivery.start && from <= made.to + SETTLED_WITHIN;
                meanwhile && made.disturbs(worker)
            };
            evidence.faults.iter().any(touches)
        };
        let uncounted = earlier.iter().any(|one| {
            let failed = matches!(one.end, Some((end, false)) if !disturbed(one.worker, end));
            failed && one.epoch == delivery.epoch && one.attempts >= delivery.attempts
        });
        if uncounted {
            verdict.say(Invariant::AttemptsExplained, || {
                format!("a failure was not counted: {delivery:?}")
            });
        }
        earlier.push(delivery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Dead, Effect, Look, Partition};
    use crate::plan::Fault;

    /// Two messages per queue, the second of which is poison; all as it should be.
    fn good() -> Evidence {
        let mut evidence = Evidence {
            healed: 100,
            at_once: 30,
            ..Evidence::default()
        };
        for queue in Queue::ALL {
            for seq in [1, 2] {
                let id = queue.number() * 10 + seq;
                let script = if seq == 2 {
                    Script::Poison
                } else {
                    Script::Fine
                };
                evidence.committed.push(Committed {
                    producer: PROBE,
                    number: id,
                    queue,
                    key: 0,
                    script,
                    id,
                });
            }
            evidence.dead.push(Dead {
                queue,
                partition: 0,
                seq: 2,
                id: queue.number() * 10 + 2,
            });
            evidence.partitions.push(Partition {
                queue,
                partition: 0,
                last_seq: 2,
                processed_seq: 2,
                epoch: 1,
            });
        }
        evidence.effects.push(Effect {
            partition: 0,
            seq: 1,
            epoch: 1,
            attempts: 0,
            producer: PROBE,
            number: 1,
            at: 101,
        });
        for (seq, success) in [(1, true), (2, false)] {
            evidence.deliveries.push(Delivery {
                worker: 0,
                partition: 0,
                seq,
                id: 10 + seq,
                epoch: 1,
                attempts: 0,
                order: Some((PROBE, 10 + seq)),
                start: 100 + seq,
                end: Some((100 + seq, success)),
            });
        }
        evidence
    }

    /// What is found when the evidence is changed.
    fn found(change: impl FnOnce(&mut Evidence)) -> Vec<Invariant> {
        let mut evidence = good();
        change(&mut evidence);
        judge(&evidence).violations.into_keys().collect()
    }

    #[test]
    fn what_is_as_it_should_be_is_left_alone() {
        assert_eq!(found(|_| {}), []);
    }

    #[test]
    fn every_invariant_bites() {
        use Invariant::{
            AttemptsExplained, DeadLettersExact, Delivered, DenseAndInOrder, EpochsGrow,
            MovesAgain, NothingElse, NothingLeft, OneEffect, ProducersOrder, ProducersUnhurt,
            Prompt,
        };
        let lost = found(|evidence| evidence.effects.clear());
        assert!(lost.contains(&Delivered), "{lost:?}");
        let phantom = found(|evidence| evidence.deliveries[0].order = Some((PROBE, 99)));
        assert!(phantom.contains(&NothingElse), "{phantom:?}");
        let changed = found(|evidence| evidence.deliveries[0].order = None);
        assert!(changed.contains(&NothingElse), "{changed:?}");
        let out_of_order = found(|evidence| evidence.deliveries.reverse());
        assert_eq!(out_of_order, [DenseAndInOrder]);
        let hole = found(|evidence| evidence.partitions[0].last_seq = 3);
        assert_eq!(hole, [DenseAndInOrder]);
        let swapped = found(|evidence| {
            evidence.committed[2].number = 99;
            evidence.deliveries[0].order = Some((PROBE, 99));
        });
        assert_eq!(swapped, [ProducersOrder]);
        let older = found(|evidence| {
            evidence.dead.pop();
            evidence.committed[3].script = Script::Fine;
            evidence.deliveries[0].epoch = 2;
            evidence.deliveries[1].end = Some((102, true));
        });
        assert_eq!(older, [EpochsGrow]);
        let restless = found(|evidence| {
            evidence.calm = (200, 300);
            for at in [200, 300] {
                let mut partitions = evidence.partitions.clone();
                partitions[0].epoch = at;
                evidence.looks.push(Look { at, partitions });
            }
        });
        assert_eq!(restless, [EpochsGrow]);
        let twice = found(|evidence| {
            let effect = evidence.effects[0];
            evidence.effects.push(effect);
        });
        assert!(twice.contains(&OneEffect), "{twice:?}");
        let unburied = found(|evidence| evidence.committed[2].script = Script::Poison);
        assert_eq!(unburied, [DeadLettersExact]);
        let stuck = found(|evidence| evidence.healed = -10_000);
        assert_eq!(stuck, [MovesAgain]);
        let endless = found(|evidence| evidence.stuck.push("the end".to_owned()));
        assert_eq!(endless, [MovesAgain]);
        let late = found(|evidence| evidence.waits = vec![1, 31, 31]);
        assert_eq!(late, [Prompt]);
        let left = found(|evidence| evidence.left.push("a lease".to_owned()));
        assert_eq!(left, [NothingLeft]);
        let charged = found(|evidence| evidence.deliveries[1].attempts = 3);
        assert_eq!(charged, [AttemptsExplained]);
        let uncounted = found(|evidence| {
            let mut again = evidence.deliveries[1].clone();
            again.start = 110;
            evidence.deliveries.push(again);
        });
        assert_eq!(uncounted, [AttemptsExplained]);
        let hurt = found(|evidence| evidence.said.push("error 7 hurt deadlock".to_owned()));
        assert_eq!(hurt, [ProducersUnhurt]);
        let unexplained = found(|evidence| evidence.said.push("error 7 away reset".to_owned()));
        assert_eq!(unexplained, [ProducersUnhurt]);
        let unsaid = found(|evidence| evidence.said.push("done 7 3 4".to_owned()));
        assert_eq!(unsaid, [Delivered]);
        let back = found(|evidence| evidence.setbacks.push("partition 3".to_owned()));
        assert_eq!(back, [EpochsGrow]);
    }

    #[test]
    fn what_a_fault_explains_is_forgiven() {
        let killed = Made {
            fault: Fault::KillServer,
            worker: 0,
            from: 0,
            to: 50,
            hit: true,
        };
        let away = |complaint: &str| {
            let complaint = complaint.to_owned();
            found(|evidence| {
                evidence.faults.push(killed);
                evidence.said.push(complaint);
            })
        };
        assert_eq!(away("error 7 away reset"), []);
        assert_eq!(away("error 7057 away reset"), [Invariant::ProducersUnhurt]);
        assert_eq!(away("error 7 hurt deadlock"), [Invariant::ProducersUnhurt]);
    }

    #[test]
    fn who_overtakes_a_retry_is_seen() {
        // The first of three fails, the second goes on all the same, and both are done in the end.
        let overtaken = found(|evidence| {
            let (first, second) = (evidence.deliveries[0].clone(), &mut evidence.deliveries[1]);
            second.start = 110;
            evidence.deliveries[0].end = Some((102, false));
            let again = Delivery {
                start: 120,
                end: Some((120, true)),
                attempts: 1,
                ..first
            };
            evidence.deliveries.push(again);
        });
        assert_eq!(overtaken, [Invariant::DenseAndInOrder]);
    }

    #[test]
    fn who_lived_through_the_faults_has_to_go_on() {
        let stood = |until: i64| {
            found(|evidence| {
                evidence.spared = (1_000, 60_000);
                for (at, processed_seq) in [(500, 1), (2_000, 1), (until, 2)] {
                    let mut partitions = evidence.partitions.clone();
                    partitions[0].processed_seq = processed_seq;
                    evidence.looks.push(Look { at, partitions });
                }
            })
        };
        assert_eq!(stood(14_000), []);
        assert_eq!(stood(14_001), [Invariant::MovesAgain]);
    }

    #[test]
    fn what_is_tried_twice_in_calm_is_seen() {
        let tried = |halts: bool| {
            found(|evidence| {
                evidence.calm = (100, 3_000);
                evidence.deliveries[0].attempts = 1;
                // A change of hands would explain it at other times.
                evidence.deliveries[0].epoch = 2;
                evidence.deliveries[1].epoch = 2;
                for at in (100..3_000).step_by(if halts { 2_000 } else { 500 }) {
                    let partitions = evidence.partitions.clone();
                    evidence.looks.push(Look { at, partitions });
                }
            })
        };
        assert_eq!(tried(false), [Invariant::AttemptsExplained]);
        assert_eq!(tried(true), []);
    }
}
