//! Whether the promises were kept, going by the evidence.

mod order;
mod trouble;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::evidence::{Committed, Evidence};
use crate::figures::{Figures, figures};
use crate::producer;
use crate::script::{Queue, Script};

/// The most examples of one kind that are told.
const EXAMPLES: usize = 5;

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
    order::in_order(evidence, &mut verdict);
    order::nobody_overtakes(evidence, &mut verdict);
    order::producers_order(evidence, &places, &mut verdict);
    order::epochs(evidence, &mut verdict);
    order::kept_in_calm(evidence, &mut verdict);
    effects(evidence, &by_order, &mut verdict);
    dead_letters(evidence, &mut verdict);
    trouble::moves_again(evidence, &mut verdict);
    trouble::attempts(evidence, &mut verdict);
    trouble::producers_unhurt(evidence, &mut verdict);
    trouble::once_in_calm(evidence, &mut verdict);
    for (invariant, what) in &evidence.broken {
        verdict.say(*invariant, || what.clone());
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
        .filter(|delivery| delivery.succeeded());
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

#[cfg(test)]
mod tests;
