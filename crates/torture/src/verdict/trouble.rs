//! What faults explain, and what they do not: attempts, stalls, and what producers complain of.

use std::collections::{BTreeMap, HashMap};

use super::{Invariant, Verdict};
use crate::evidence::Evidence;
use crate::faults::Made;
use crate::figures::stalls;
use crate::ledger::{End, millis};
use crate::plan::Fault;
use crate::producer::{Complaint, Kind, PROBE, SLOW};
use crate::run::{GRACE, HANGING};
use crate::script::Queue;
use crate::worker::LEASE;

/// How long after a fault's end a settlement may still be lost to it, in milliseconds.
const SETTLED_WITHIN: i64 = 2_000;

/// How long after a fault's end a producer may still find the server away, in milliseconds.
const BACK_WITHIN: i64 = 2_000;
/// The same where it waits for a connection, which takes five seconds.
const CONNECTED_WITHIN: i64 = 7_000;

/// When each partition handled its probe.
pub(super) fn probed(evidence: &Evidence) -> BTreeMap<(Queue, i64), i64> {
    let effects = evidence.effects.iter().map(|effect| {
        let partition = (Queue::Transactional, effect.partition);
        (effect.producer, partition, Some(effect.at))
    });
    let deliveries = evidence.deliveries.iter().map(|delivery| {
        let producer = delivery.order.map_or(-1, |order| order.0);
        let end = delivery.end.map(End::at);
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

/// Every partition moves in time: when the faults are over, by those who lived through them; and in the
/// end, when nobody has, whatever is open beside it.
pub(super) fn moves_again(evidence: &Evidence, verdict: &mut Verdict) {
    let bound = millis(LEASE.duration + GRACE);
    let (over, until) = evidence.spared;
    let mut looks = evidence.looks.iter();
    let partitions =
        looks.find_map(|look| Some(look.partitions.clone()).filter(|_| look.at > over));
    let names = partitions.into_iter().flatten();
    for (one, stalls) in names.zip(stalls(&evidence.looks)) {
        let stood = stalls.iter().filter(|(from, _)| *from < until);
        let stood = stood.map(|(from, to)| to - over.max(*from)).max();
        if let Some(stood) = stood.filter(|stood| *stood > bound + millis(HANGING)) {
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
pub(super) fn once_in_calm(evidence: &Evidence, verdict: &mut Verdict) {
    if evidence.halted_since_calm() {
        return;
    }
    let (from, to) = evidence.calm;
    let effects = evidence.effects.iter();
    let effects = effects.map(|one| (one.at, one.attempts, format!("{one:?}")));
    let deliveries = evidence.deliveries.iter();
    let deliveries = deliveries.map(|one| (one.start(), one.attempts, format!("{one:?}")));
    for (at, attempts, what) in effects.chain(deliveries) {
        if (from..to).contains(&at) && attempts > 0 {
            verdict.say(Invariant::AttemptsExplained, || format!("in calm: {what}"));
        }
    }
}

/// A producer finds the server away only when a fault has taken it away.
pub(super) fn producers_unhurt(evidence: &Evidence, verdict: &mut Verdict) {
    for line in &evidence.said {
        let Some(complaint) = Complaint::read(line) else {
            continue;
        };
        let explained = |within: i64| {
            let explains = |made: &Made| {
                // Who goes all at once is not gone at once.
                let within = match made.fault {
                    Fault::Crowd => CONNECTED_WITHIN,
                    _ => within,
                };
                let while_away = made.from..made.to + within;
                made.disturbs_producer(complaint.process) && while_away.contains(&complaint.at)
            };
            evidence.faults.iter().any(explains)
        };
        let blameless = match complaint.kind {
            Kind::Busy => true,
            Kind::Away => explained(BACK_WITHIN),
            Kind::Unconnected => explained(CONNECTED_WITHIN),
            // It has to have begun in calm, too; that it ended then is not asked.
            Kind::Slow => {
                let (from, _) = evidence.calm;
                complaint.at < from + millis(SLOW) || evidence.halted_since_calm()
            }
            Kind::Hurt => false,
        };
        if !blameless {
            verdict.say(Invariant::ProducersUnhurt, || line.clone());
        }
    }
}

/// An attempt more than before is explained by a failure or by a change of hands.
pub(super) fn attempts(evidence: &Evidence, verdict: &mut Verdict) {
    let mut before: HashMap<i64, Vec<&crate::ledger::Delivery>> = HashMap::new();
    let mut first_epoch: HashMap<(i64, i64), i64> = HashMap::new();
    for delivery in &evidence.deliveries {
        first_epoch
            .entry((delivery.partition, delivery.seq))
            .or_insert(delivery.epoch);
    }
    for delivery in &evidence.deliveries {
        let earlier = before.entry(delivery.id).or_default();
        let failures = earlier.iter().filter(|one| !one.succeeded());
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
                let meanwhile = made.from <= delivery.start() && from <= made.to + SETTLED_WITHIN;
                meanwhile && made.disturbs(worker)
            };
            evidence.faults.iter().any(touches)
        };
        let uncounted = earlier.iter().any(|one| {
            let failed = one.end.filter(|end| !end.success);
            let failed = failed.is_some_and(|end| !disturbed(one.worker, end.at()));
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
