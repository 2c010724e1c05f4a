//! Evidence that is a little wrong, one invariant at a time.

use super::*;
use crate::evidence::{Dead, Effect, Look, Partition};
use crate::faults::Made;
use crate::ledger::{Delivery, End, NANOS};
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
            started_nanos: (100 + seq) * NANOS,
            end: ended(100 + seq, success),
        });
    }
    evidence
}

/// The end of a handler, right after the beginning of the millisecond.
fn ended(millis: i64, success: bool) -> Option<End> {
    Some(End {
        nanos: millis * NANOS + 1,
        success,
    })
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
        evidence.deliveries[1].end = ended(102, true);
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
    for wrong in [MovesAgain, NothingLeft] {
        let seen = found(|evidence| evidence.broken.push((wrong, "seen at once".to_owned())));
        assert_eq!(seen, [wrong]);
    }
    let late = found(|evidence| evidence.waits = vec![1, 31, 31]);
    assert_eq!(late, [Prompt]);
    let charged = found(|evidence| evidence.deliveries[1].attempts = 3);
    assert_eq!(charged, [AttemptsExplained]);
    let uncounted = found(|evidence| {
        let mut again = evidence.deliveries[1].clone();
        again.started_nanos = 110 * NANOS;
        evidence.deliveries.push(again);
    });
    assert_eq!(uncounted, [AttemptsExplained]);
    let hurt = found(|evidence| evidence.said.push("error 7 hurt 0 deadlock".to_owned()));
    assert_eq!(hurt, [ProducersUnhurt]);
    let unexplained = found(|evidence| evidence.said.push("error 7 away 0 reset".to_owned()));
    assert_eq!(unexplained, [ProducersUnhurt]);
    let unsaid = found(|evidence| evidence.said.push("done 7 3 4".to_owned()));
    assert_eq!(unsaid, [Delivered]);
    let blocked = found(|evidence| {
        evidence.calm = (100, 9_000);
        let partitions = evidence.partitions.clone();
        evidence.looks.push(Look {
            at: 100,
            partitions,
        });
        evidence.said.push("error 2100 slow 0 2.1s".to_owned());
    });
    assert_eq!(blocked, [ProducersUnhurt]);
    let unseen = found(|evidence| evidence.calm = (100, 9_000));
    assert_eq!(unseen, [EpochsGrow]);
}

#[test]
fn what_a_fault_explains_is_forgiven() {
    let after = |fault: Fault, complaint: &str| {
        let complaint = complaint.to_owned();
        found(|evidence| {
            evidence.faults.push(Made {
                fault,
                worker: 0,
                from: 0,
                to: 50,
                hit: true,
            });
            evidence.said.push(complaint);
        })
    };
    let hurt = [Invariant::ProducersUnhurt];
    assert_eq!(after(Fault::KillServer, "error 7 away 0 reset"), []);
    assert_eq!(after(Fault::KillServer, "error 2050 away 0 reset"), hurt);
    assert_eq!(after(Fault::KillServer, "error 7049 unconnected 0 -"), []);
    assert_eq!(after(Fault::KillServer, "error 7050 unconnected 0 -"), hurt);
    assert_eq!(after(Fault::KillServer, "error 7 hurt 0 deadlock"), hurt);
    // The producers 4 and above are the other process's.
    assert_eq!(after(Fault::ResetProducer, "error 7 away 3 reset"), []);
    assert_eq!(after(Fault::ResetProducer, "error 7 away 4 reset"), hurt);
}

#[test]
fn who_overtakes_a_retry_is_seen() {
    // The first of three fails, the second goes on all the same, and both are done in the end.
    let overtaken = found(|evidence| {
        let (first, second) = (evidence.deliveries[0].clone(), &mut evidence.deliveries[1]);
        second.started_nanos = 110 * NANOS;
        evidence.deliveries[0].end = ended(102, false);
        let again = Delivery {
            started_nanos: 120 * NANOS,
            end: ended(120, true),
            attempts: 1,
            ..first
        };
        evidence.deliveries.push(again);
    });
    assert_eq!(overtaken, [Invariant::DenseAndInOrder]);
}

#[test]
fn who_overtakes_within_a_millisecond_is_seen() {
    let overtaken = found(|evidence| {
        for (delivery, nanos) in evidence.deliveries.iter_mut().zip([20, 10]) {
            delivery.started_nanos = 100 * NANOS + nanos;
            delivery.end = ended(101, delivery.seq == 1);
        }
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
            // Whether somebody could look says nothing: the database may be slow.
            for at in [100, 2_900] {
                let partitions = evidence.partitions.clone();
                evidence.looks.push(Look { at, partitions });
            }
            evidence.halts.extend(halts.then_some(2_000));
        })
    };
    assert_eq!(tried(false), [Invariant::AttemptsExplained]);
    assert_eq!(tried(true), []);
}

#[test]
fn a_lease_that_nobody_renews_is_seen() {
    let overdue = |looks: i64| {
        found(|evidence| {
            evidence.calm = (200, 9_000);
            for at in 0..looks {
                let mut partitions = evidence.partitions.clone();
                partitions[0].overdue = true;
                let at = 200 + at * 250;
                evidence.looks.push(Look { at, partitions });
            }
        })
    };
    assert_eq!(overdue(7), []);
    assert_eq!(overdue(8), [Invariant::EpochsGrow]);
}
