//! The protocol of leases, epochs and the cursor, explored exhaustively: every order in which two or
//! three processes can claim, deliver, settle, lose requests and replies, crash and outlive their leases. And the same
//! protocol broken on purpose, which must be found out.

use stateright::{Checker as _, Model, Property};

/// How many messages the partition has.
const MESSAGES: u8 = 3;
/// How often a lease may change hands: bounds the exploration.
const MOST_EPOCHS: u8 = 4;

/// How handlers' effects come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// In the transaction that settles.
    Transactional,
    /// Outside; what is not known to be settled is settled again.
    Leased,
}

/// What is wrong with the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Whoever once held the lease may settle.
    NoEpochCheck,
    /// A claim does not raise the epoch.
    SameEpoch,
    /// What is settled is counted, not named.
    CursorByCount,
    /// The cursor may move back.
    CursorUnguarded,
    /// Both of that: whoever once held the lease may settle, and the cursor may move back.
    NoFence,
    /// Effects commit before the settlement, not with it.
    EffectsApart,
}

#[derive(Debug, Clone, Copy)]
struct Protocol {
    processes: usize,
    mode: Mode,
    flaw: Flaw,
}

/// What a process believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Process {
    Idle,
    /// It holds the lease, and everything up to `at` is settled.
    Holding {
        epoch: u8,
        at: u8,
    },
    /// Its handler is done with the message after `at`.
    Handled {
        epoch: u8,
        at: u8,
    },
    /// It has asked for the settlement of the message after `at`, and heard nothing.
    Unsure {
        epoch: u8,
        at: u8,
    },
}

/// The database, the processes, and what an observer has seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    holder: Option<u8>,
    epoch: u8,
    expired: bool,
    cursor: u8,
    processes: Vec<Process>,
    effects: [u8; MESSAGES as usize],
    /// The highest message that was ever delivered.
    delivered: u8,
    last_settler: u8,
    /// What went wrong for good: the cursor moved back, an older epoch settled after a newer one, a
    /// message was delivered before the one ahead of it.
    moved_back: bool,
    zombie_settled: bool,
    out_of_order: bool,
}

impl World {
    /// Twice is as wrong as more often, and bounds the exploration.
    fn happen(&mut self, at: u8) {
        let effects = &mut self.effects[usize::from(at)];
        *effects = (*effects + 1).min(2);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Claim(u8),
    ClaimAndLoseTheReply(u8),
    Expire,
    Renew(u8),
    Deliver(u8),
    Settle(u8),
    SettleAndLoseTheReply(u8),
    LoseTheSettlement(u8),
    Read(u8),
    Release(u8),
    Crash(u8),
}

impl Protocol {
    fn holds(&self, world: &World, process: u8, epoch: u8) -> bool {
        if matches!(self.flaw, Flaw::NoEpochCheck | Flaw::NoFence) {
            return true;
        }
        world.epoch == epoch && (world.holder == Some(process) || self.flaw == Flaw::SameEpoch)
    }

    fn claim(&self, world: &mut World, process: u8) {
        if self.flaw != Flaw::SameEpoch {
            world.epoch += 1;
        }
        world.holder = Some(process);
        world.expired = false;
    }

    /// The settling write: whether it found its row.
    fn settle(&self, world: &mut World, process: u8, epoch: u8, at: u8) -> bool {
        let seq = at + 1;
        let unguarded = matches!(self.flaw, Flaw::CursorUnguarded | Flaw::NoFence);
        let guarded = world.cursor <= seq || unguarded;
        if !self.holds(world, process, epoch) || !guarded {
            return false;
        }
        let cursor = match self.flaw {
            Flaw::CursorByCount => (world.cursor + 1).min(MESSAGES),
            _ => seq,
        };
        world.moved_back |= cursor < world.cursor;
        world.zombie_settled |= epoch < world.last_settler;
        world.last_settler = world.last_settler.max(epoch);
        world.cursor = cursor;
        world.expired = false;
        if self.mode == Mode::Transactional && self.flaw != Flaw::EffectsApart {
            world.happen(at);
        }
        true
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            holder: None,
            epoch: 0,
            expired: false,
            cursor: 0,
            processes: vec![Process::Idle; self.processes],
            effects: [0; MESSAGES as usize],
            delivered: 0,
            last_settler: 0,
            moved_back: false,
            zombie_settled: false,
            out_of_order: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.holder.is_some() && !world.expired {
            steps.push(Step::Expire);
        }
        for (number, process) in (0..).zip(&world.processes) {
            match *process {
                Process::Idle => {
                    let free = world.holder.is_none() || world.expired;
                    if free && world.epoch < MOST_EPOCHS {
                        steps.push(Step::Claim(number));
                        steps.push(Step::ClaimAndLoseTheReply(number));
                    }
                    continue;
                }
                Process::Holding { at, .. } => {
                    if at < MESSAGES {
                        steps.push(Step::Deliver(number));
                    }
                    steps.push(Step::Release(number));
                }
                Process::Handled { .. } => {
                    steps.push(Step::Settle(number));
                    steps.push(Step::SettleAndLoseTheReply(number));
                    steps.push(Step::LoseTheSettlement(number));
                }
                Process::Unsure { .. } => match self.mode {
                    Mode::Transactional => steps.push(Step::Read(number)),
                    Mode::Leased => steps.push(Step::Settle(number)),
                },
            }
            steps.push(Step::Renew(number));
            steps.push(Step::Crash(number));
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let state = |world: &World, process: u8| world.processes[usize::from(process)];
        let set = |world: &mut World, process: u8, to: Process| {
            world.processes[usize::from(process)] = to;
        };
        match step {
            Step::Expire => world.expired = true,
            Step::Claim(process) => {
                self.claim(&mut world, process);
                let (epoch, at) = (world.epoch, world.cursor);
                set(&mut world, process, Process::Holding { epoch, at });
            }
            Step::ClaimAndLoseTheReply(process) => self.claim(&mut world, process),
            Step::Crash(process) => set(&mut world, process, Process::Idle),
            Step::Renew(process) => {
                let (Process::Holding { epoch, .. }
                | Process::Handled { epoch, .. }
                | Process::Unsure { epoch, .. }) = state(&world, process)
                else {
                    return None;
                };
                if self.holds(&world, process, epoch) {
                    world.expired = false;
                }
            }
            Step::Release(process) => {
                let Process::Holding { epoch, .. } = state(&world, process) else {
                    return None;
                };
                if self.holds(&world, process, epoch) {
                    world.holder = None;
                    world.expired = false;
                }
                set(&mut world, process, Process::Idle);
            }
            Step::Deliver(process) => {
                let Process::Holding { epoch, at } = state(&world, process) else {
                    return None;
                };
                world.out_of_order |= at > world.delivered;
                world.delivered = world.delivered.max(at + 1);
                if self.flaw == Flaw::EffectsApart {
                    world.happen(at);
                }
                set(&mut world, process, Process::Handled { epoch, at });
            }
            Step::Settle(process) => {
                let (Process::Handled { epoch, at } | Process::Unsure { epoch, at }) =
                    state(&world, process)
                else {
                    return None;
                };
                let to = if self.settle(&mut world, process, epoch, at) {
                    Process::Holding { epoch, at: at + 1 }
                } else {
                    Process::Idle
                };
                set(&mut world, process, to);
            }
            Step::SettleAndLoseTheReply(process) => {
                let Process::Handled { epoch, at } = state(&world, process) else {
                    return None;
                };
                self.settle(&mut world, process, epoch, at);
                set(&mut world, process, Process::Unsure { epoch, at });
            }
            Step::LoseTheSettlement(process) => {
                let Process::Handled { epoch, at } = state(&world, process) else {
                    return None;
                };
                set(&mut world, process, Process::Unsure { epoch, at });
            }
            Step::Read(process) => {
                let Process::Unsure { epoch, .. } = state(&world, process) else {
                    return None;
                };
                let at = world.cursor;
                let to = if self.holds(&world, process, epoch) {
                    Process::Holding { epoch, at }
                } else {
                    Process::Idle
                };
                set(&mut world, process, to);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_BACK, |_, world: &World| !world.moved_back),
            Property::always(NEWEST_SETTLES, |_, world: &World| !world.zombie_settled),
            Property::always(IN_ORDER, |_, world: &World| !world.out_of_order),
            Property::always(NOTHING_SKIPPED, |_, world: &World| {
                world.cursor <= world.delivered
            }),
            Property::always(ONE_EFFECT, |protocol: &Self, world: &World| {
                let settled = usize::from(world.cursor);
                let one = |effects: &[u8]| effects.iter().all(|effects| *effects == 1);
                protocol.mode == Mode::Leased
                    || (one(&world.effects[..settled])
                        && world.effects[settled..].iter().all(|effects| *effects == 0))
            }),
            Property::sometimes(ALL_SETTLED, |_, world: &World| world.cursor == MESSAGES),
        ]
    }
}

const NEVER_BACK: &str = "the cursor never moves back";
const NEWEST_SETTLES: &str = "nobody settles after a newer holder has";
const IN_ORDER: &str = "no message is delivered before the one ahead of it";
const NOTHING_SKIPPED: &str = "what is settled was delivered";
const ONE_EFFECT: &str = "what is settled has one effect, what is not has none";
const ALL_SETTLED: &str = "everything can be settled";

/// What was explored of a protocol, and which promises it breaks.
#[derive(Debug, PartialEq, Eq)]
struct Explored {
    states: usize,
    /// How many steps the state has before it that is farthest from the beginning.
    deep: usize,
    broken: Vec<&'static str>,
}

fn explored(processes: usize, mode: Mode, flaw: Flaw) -> Explored {
    let protocol = Protocol {
        processes,
        mode,
        flaw,
    };
    // One thread takes the states in the order of their distance, so that it is the same every time.
    let checker = protocol.checker().threads(1).spawn_bfs().join();
    let mut broken: Vec<_> = checker.discoveries().into_keys().collect();
    let settled = broken.iter().position(|name| *name == ALL_SETTLED);
    let settled = settled.expect("everything can be settled");
    broken.remove(settled);
    broken.sort_unstable();
    Explored {
        states: checker.unique_state_count(),
        // The checker counts states, and the first is one of them.
        deep: checker.max_depth() - 1,
        broken,
    }
}

/// `docs/reliability.md` has these numbers: fewer states would be a smaller promise.
#[test]
fn no_order_of_events_breaks_a_promise() {
    for (mode, processes, states, deep) in [
        (Mode::Transactional, 2, 6_775, 17),
        (Mode::Transactional, 3, 68_573, 19),
        (Mode::Leased, 2, 6_328, 17),
        (Mode::Leased, 3, 63_779, 19),
    ] {
        let expected = Explored {
            states,
            deep,
            broken: vec![],
        };
        let explored = explored(processes, mode, Flaw::None);
        assert_eq!(explored, expected, "{processes} processes, {mode:?}");
    }
}

#[test]
fn a_broken_protocol_is_found_out() {
    for (mode, flaw, promise) in [
        (Mode::Transactional, Flaw::NoEpochCheck, ONE_EFFECT),
        (Mode::Leased, Flaw::NoEpochCheck, NEWEST_SETTLES),
        (Mode::Transactional, Flaw::SameEpoch, ONE_EFFECT),
        (Mode::Leased, Flaw::CursorByCount, NOTHING_SKIPPED),
        (Mode::Transactional, Flaw::EffectsApart, ONE_EFFECT),
        (Mode::Transactional, Flaw::NoFence, NEVER_BACK),
        (Mode::Leased, Flaw::NoFence, NEVER_BACK),
    ] {
        let broken = explored(2, mode, flaw).broken;
        assert!(broken.contains(&promise), "{mode:?} {flaw:?}: {broken:?}");
    }
}

/// The epoch and the guard on the cursor each keep it from moving back: it takes both to be gone.
#[test]
fn the_cursor_has_two_fences() {
    for mode in [Mode::Transactional, Mode::Leased] {
        let broken = explored(2, mode, Flaw::CursorUnguarded).broken;
        assert_eq!(broken, [] as [&str; 0], "{mode:?}");
        let broken = explored(2, mode, Flaw::NoEpochCheck).broken;
        assert!(!broken.contains(&NEVER_BACK), "{mode:?}: {broken:?}");
    }
}
