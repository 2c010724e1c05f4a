//! Evidence that is a little wrong, one invariant at a time.

use super::*;
use crate::evidence::{Dead, Effect, Look, Partition};
use crate::faults::Made;
use crate::ledger::Delivery;
use crate::plan::Fault;
use crate::producer::PROBE;

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
            overdue: false,
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
        AttemptsExplained, DeadLettersExact, Delivered, DenseAndInOrder, EpochsGrow, MovesAgain,
        NothingElse, NothingLeft, OneEffect, ProducersOrder, ProducersUnhurt, Prompt,
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

#[test]
fn a_lease_that_nobody_renews_is_seen() {
    let overdue = |looks: i64| {
        found(|evidence| {
            evidence.calm = (200, 3_000);
            for at in 0..looks {
                let mut partitions = evidence.partitions.clone();
                partitions[0].overdue = true;
                let at = 200 + at * 250;
                evidence.looks.push(Look { at, partitions });
            }
        })
    };
    assert_eq!(overdue(3), []);
    assert_eq!(overdue(4), [Invariant::EpochsGrow]);
}
