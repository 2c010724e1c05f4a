//! What the workers of one process share: the store, the queues, and the signals between them. No
//! worker calls another; they leave notes here and ring.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{
    Advance, Backend, Commit, Incarnation, Lease, PartitionId, Pulse, ReadLimit, Settlement, Store,
};
use crate::clock::Clock;
use crate::config::{LeaseConfig, SequencerConfig};
use crate::error::OutboxError;
use crate::handler::Handler;
use crate::metrics::{Meters, QueueMeters};
use crate::patience::{LONGEST, Patience};
use crate::queue::{Partitions, QueueName};
use crate::schedule::Schedule;
use crate::stats::PartitionStats;
use crate::tuning::OutboxProfile;
use crate::unannounced::{ConnectionId, Unannounced};

/// A registered queue.
#[derive(Debug)]
pub(crate) struct Queue<DB: Backend> {
    pub(crate) name: QueueName,
    /// What the outbox is called.
    pub(crate) origin: Arc<str>,
    pub(crate) partitions: Partitions,
    /// In the order of the partitions.
    pub(crate) partition_ids: Vec<PartitionId>,
    /// `None`: produce only.
    pub(crate) handler: Option<Handler<DB>>,
    pub(crate) lease: LeaseConfig,
    pub(crate) max_attempts: Option<u32>,
    /// How long a handler may take while its lease is renewed; `None`: the lease's budget.
    pub(crate) renew_up_to: Option<Duration>,
    pub(crate) meters: QueueMeters,
}

impl<DB: Backend> Queue<DB> {
    /// The database's number of a partition, or a refusal.
    pub(crate) fn partition_id(&self, partition: u32) -> Result<PartitionId, OutboxError> {
        let id = self.partition_ids.get(partition as usize).copied();
        id.ok_or_else(|| OutboxError::PartitionOutOfRange {
            queue: self.name.to_string(),
            partition,
            max: u32::from(self.partitions.count()) - 1,
        })
    }

    pub(crate) fn lease_millis(&self) -> i64 {
        millis(self.lease.duration)
    }

    /// How long a handler may take, counted from before its lease was renewed.
    pub(crate) fn handler_budget(&self) -> Duration {
        self.renew_up_to
            .unwrap_or_else(|| self.lease.handler_budget())
    }
}

/// The longest time that a database is told of: added to a moment it is still a number.
const LONGEST_MILLIS: i64 = i64::MAX / 4;

/// A duration as the database knows it.
pub(crate) fn millis(duration: Duration) -> i64 {
    let millis = i64::try_from(duration.as_millis()).unwrap_or(LONGEST_MILLIS);
    millis.min(LONGEST_MILLIS)
}

/// What is known in this process of one partition it has a handler for.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Wakes the partition's processor.
    pub(crate) bell: Arc<Notify>,
    note: Mutex<Note>,
}

/// The note on a desk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Note {
    /// The lease the processor holds.
    pub(crate) lease: Option<Lease>,
    /// What was handled under it and is not written down yet.
    pub(crate) owed: Option<Owed>,
    /// Whether a handler runs under it: then nobody else renews it, unless `renew_until` allows it.
    pub(crate) handling: bool,
    /// Until when the lease is renewed although a handler runs under it.
    pub(crate) renew_until: Option<Instant>,
    /// Tells that handler that the lease is lost.
    pub(crate) lost: CancellationToken,
    /// Whether this process should hold the partition.
    pub(crate) ours: bool,
    /// Whether the processor may claim although the partition is not ours, or although the lease has
    /// not run out by the database's clock.
    pub(crate) permit: Option<ClaimPermit>,
    /// When messages were first announced that the processor has not looked for yet.
    pub(crate) announced: Option<Instant>,
    /// Whether somebody may have taken the lease.
    pub(crate) doubted: bool,
}

/// What was handled and has to be written down.
#[derive(Debug, Clone)]
pub(crate) struct Owed {
    pub(crate) settlement: Settlement,
    /// The lease lasts so long at least.
    pub(crate) until: Instant,
}

/// Why a processor may claim out of turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimPermit {
    /// Nobody has claimed pending work for a while.
    Unclaimed,
    /// The holder gave no sign of life for a whole lease on our own clock.
    Stale(Pulse),
}

impl Note {
    /// The lease, if it should be renewed at this time.
    pub(crate) fn renewable(&self, now: Instant) -> Option<Lease> {
        let allowed = !self.handling || self.renew_until.is_some_and(|until| now < until);
        self.lease.filter(|_| allowed)
    }
}

impl Desk {
    pub(crate) fn note(&self) -> MutexGuard<'_, Note> {
        lock(&self.note)
    }
}

/// The state behind a lock stays valid at every step, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the workers of a process share.
#[derive(Debug)]
pub(crate) struct Engine<DB: Backend> {
    pub(crate) store: Store<DB>,
    /// What the outbox is called.
    pub(crate) origin: Arc<str>,
    pub(crate) queues: HashMap<String, Arc<Queue<DB>>>,
    /// Whose partition it is.
    pub(crate) queue_of: HashMap<PartitionId, Arc<Queue<DB>>>,
    pub(crate) meters: Meters,
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    /// How often contact with the database was found again.
    pub(crate) contact: watch::Sender<u64>,
    pub(crate) max_payload: usize,
    pub(crate) sequencer: SequencerConfig,
    pub(crate) profile: OutboxProfile,
    /// Whether workers run here.
    pub(crate) staffed: bool,
    /// Whether only some processors may work at a time.
    pub(crate) processors_limited: bool,
    /// One per partition with a handler here.
    pub(crate) desks: HashMap<PartitionId, Desk>,
    pub(crate) schedule: Mutex<Schedule>,
    /// Wakes a sequencer.
    pub(crate) sequencer_bell: Arc<Notify>,
    /// Wakes the scout.
    pub(crate) scout_bell: Arc<Notify>,
    /// Whether it should look now, and not when it thinks best.
    pub(crate) look_now: AtomicBool,
    pub(crate) unannounced: Mutex<Unannounced>,
    /// Where something was settled since the vacuum last looked.
    pub(crate) settled: Mutex<HashSet<PartitionId>>,
    /// Wakes the vacuum.
    pub(crate) vacuum_bell: Arc<Notify>,
    /// Makes the herald tell other processes.
    pub(crate) herald_bell: Arc<Notify>,
}

impl<DB: Backend> Engine<DB> {
    /// How long a worker waits for the database.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(LONGEST, self.contact.subscribe())
    }

    /// Every partition of every registered queue.
    pub(crate) fn partition_ids(&self) -> Vec<PartitionId> {
        self.queues
            .values()
            .flat_map(|queue| queue.partition_ids.iter().copied())
            .collect()
    }

    /// Publishes how the queues are doing.
    pub(crate) fn show(&self, stats: &[PartitionStats]) {
        let (incarnation, now) = (self.incarnation.0.as_str(), SystemTime::now());
        for queue in self.queues.values() {
            let name = queue.name.as_str();
            let own: Vec<_> = stats.iter().filter(|one| one.queue == name).collect();
            queue.meters.show(&own, incarnation, self.staffed, now);
        }
    }

    /// Committed work was seen in these partitions.
    pub(crate) fn mark(&self, partitions: impl IntoIterator<Item = PartitionId>) {
        if !self.staffed {
            self.herald_bell.notify_one();
            return;
        }
        let now = self.clock.now();
        let mut schedule = lock(&self.schedule);
        let mut told = true;
        for partition_id in partitions {
            told &= !schedule.mark(partition_id, now);
        }
        drop(schedule);
        if !told {
            self.sequencer_bell.notify_one();
        }
    }

    /// Something was enqueued in a transaction that is still open.
    pub(crate) fn note_enqueued(
        &self,
        connection: ConnectionId,
        partitions: impl IntoIterator<Item = PartitionId>,
    ) {
        if lock(&self.unannounced).note(connection, partitions) {
            self.scout_bell.notify_one();
        }
    }

    /// Something may be committed that nobody will announce.
    pub(crate) fn look_for(&self, partitions: impl IntoIterator<Item = PartitionId>) {
        if lock(&self.unannounced).look_for(partitions) {
            self.scout_bell.notify_one();
        }
    }

    /// The scout should look at everything now.
    pub(crate) fn look_now(&self) {
        self.look_now.store(true, Ordering::Release);
        self.scout_bell.notify_one();
    }

    /// What became dead letters is there now.
    pub(crate) fn note_buried(&self, partition_id: PartitionId, settlement: &Settlement) {
        if let Some(queue) = self.queue_of.get(&partition_id) {
            let buried = settlement.dead_letters.len() as u64;
            queue.meters.dead_lettered.increment(buried);
        }
    }

    /// Messages were settled in a partition.
    pub(crate) fn note_settled(&self, partition_id: PartitionId) {
        let mut settled = lock(&self.settled);
        let idle = settled.is_empty();
        settled.insert(partition_id);
        drop(settled);
        if idle {
            self.vacuum_bell.notify_one();
        }
    }

    /// Writes down what was handled in a partition, for a processor that will not do it itself.
    pub(crate) async fn settle_owed(
        &self,
        lease: Lease,
        owed: &Owed,
    ) -> Result<Advance, OutboxError> {
        let (settlement, nothing) = (Some(&owed.settlement), ReadLimit::NOTHING);
        let settle = || DB::advance_alone(&self.store, lease, settlement, nothing, Commit::Relaxed);
        let settled = match settle().await {
            Err(error) if error.is_retryable() => settle().await,
            settled => settled,
        };
        if let Ok(Advance::Held(_)) = settled {
            self.note_buried(lease.partition_id, &owed.settlement);
        }
        settled
    }

    /// The lease of a partition may be gone: its processor looks.
    pub(crate) fn doubt(&self, partition_id: PartitionId) {
        if let Some(desk) = self.desks.get(&partition_id) {
            desk.note().doubted = true;
            desk.bell.notify_one();
        }
    }

    /// The database does again what it is asked: nobody rests for what was before.
    pub(crate) fn note_contact(&self) {
        self.contact.send_modify(|contacts| *contacts += 1);
        lock(&self.schedule).end_rests(self.clock.now());
        self.sequencer_bell.notify_one();
        for desk in self.desks.values() {
            desk.bell.notify_one();
        }
    }

    /// Something may have changed in a partition.
    pub(crate) fn ring(&self, partition_id: PartitionId) {
        if let Some(desk) = self.desks.get(&partition_id) {
            desk.bell.notify_one();
        }
    }

    /// Messages were sequenced in a partition: whoever holds it should know.
    pub(crate) fn note_sequenced(&self, partition_id: PartitionId) {
        let here = self.desks.get(&partition_id).is_some_and(|desk| {
            let mut note = desk.note();
            let here = note.ours || note.lease.is_some();
            if here {
                note.announced.get_or_insert_with(Instant::now);
            }
            here
        });
        self.ring(partition_id);
        if !here {
            self.herald_bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_time_can_be_added_to_any_moment(
            scaled in (any::<u64>(), 0_u32..64).prop_map(|(seconds, scale)| seconds >> scale),
            near_the_end in 9_223_372_036_754_775..=9_223_372_036_854_775_u64,
            nanos in 0..1_000_000_000_u32,
        ) {
            let year_9999 = 253_402_300_799_999_i64;
            for seconds in [scaled, near_the_end] {
                let duration = Duration::new(seconds, nanos);
                let told = millis(duration);
                prop_assert!(told >= 0 && year_9999.checked_add(told).is_some());
                let is_long = duration > Duration::from_hours(24 * 365 * 1_000_000);
                prop_assert!(is_long || told as u128 == duration.as_millis());
            }
        }
    }
}
