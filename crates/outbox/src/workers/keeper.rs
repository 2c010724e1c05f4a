//! Keeps this process's place among the others: says that it is alive, works out which partitions are
//! its own, and renews the leases of partitions that have nothing to do.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use taskward::{Directive, WorkerAction};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Incarnation, Lease, PartitionId, Process};
use crate::engine::Engine;
use crate::error::OutboxError;
use crate::patience::Patience;

/// How often a process says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long after that it still counts as alive.
pub(crate) const ALIVE_MILLIS: u32 = 5_000;
/// After so many failures in a row, and not after a deadlock, whoever rests is told that it works again.
const OUTAGE: u32 = 2;

#[derive(Debug)]
pub(crate) struct Keeper<DB: Backend> {
    engine: Arc<Engine<DB>>,
    process: Process,
    interval: Duration,
    patience: Patience,
    /// How often it failed in a row.
    failures: u32,
}

impl<DB: Backend> Keeper<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        let handled = || {
            engine
                .queues
                .values()
                .filter(|queue| queue.handler.is_some())
        };
        let queues = handled().map(|queue| queue.name.to_string()).collect();
        // Three chances to renew before a lease runs out.
        let interval = handled()
            .map(|queue| queue.lease.duration / 3)
            .min()
            .unwrap_or(HEARTBEAT);
        let process = Process {
            incarnation: engine.incarnation.clone(),
            queues,
        };
        Self {
            patience: engine.patience(),
            failures: 0,
            engine,
            process,
            interval: interval.min(HEARTBEAT),
        }
    }

    /// Renews what is held while no handler runs, those that are idle, back off or wait, and what is
    /// held by handlers that may take longer than their lease.
    async fn renew(&mut self) -> Result<(), OutboxError> {
        let now = self.engine.clock.now();
        let desks = self.engine.desks.values();
        let leases: Vec<Lease> = desks
            .filter_map(|desk| desk.note().renewable(now))
            .collect();
        if leases.is_empty() {
            return Ok(());
        }
        let renew = DB::renew(&self.engine.store, &leases);
        let held = self.patience.hear(renew).await?;
        let lost = leases
            .iter()
            .filter(|lease| !held.contains(&lease.partition_id));
        for lease in lost {
            // The processor finds out by itself; it only has to look. A handler does not look.
            self.engine.doubt(lease.partition_id);
            if let Some(desk) = self.engine.desks.get(&lease.partition_id) {
                let note = desk.note();
                if note.lease == Some(*lease) {
                    note.lost.cancel();
                }
            }
        }
        Ok(())
    }

    async fn announce(&mut self) -> Result<(), OutboxError> {
        let announce = DB::announce(&self.engine.store, &self.process, ALIVE_MILLIS.into());
        let alive = self.patience.hear(announce).await?;
        self.settle_ownership(&alive);
        Ok(())
    }

    fn settle_ownership(&self, alive: &[Process]) {
        for queue in self
            .engine
            .queues
            .values()
            .filter(|queue| queue.handler.is_some())
        {
            let candidates: Vec<&Incarnation> = alive
                .iter()
                .filter(|process| {
                    process
                        .queues
                        .iter()
                        .any(|name| name == queue.name.as_str())
                })
                .map(|process| &process.incarnation)
                .collect();
            for partition_id in &queue.partition_ids {
                let ours = owner(*partition_id, &candidates) == Some(&self.engine.incarnation);
                let Some(desk) = self.engine.desks.get(partition_id) else {
                    continue;
                };
                let changed = std::mem::replace(&mut desk.note().ours, ours) != ours;
                if changed {
                    desk.bell.notify_one();
                }
            }
        }
    }
}

/// Rendezvous hashing: who comes or goes moves only its own share.
fn owner<'a>(partition_id: PartitionId, candidates: &[&'a Incarnation]) -> Option<&'a Incarnation> {
    candidates.iter().copied().max_by_key(|candidate| {
        let mut hash = Sha256::new();
        hash.update(partition_id.0.to_be_bytes());
        hash.update(candidate.0.as_bytes());
        <[u8; 32]>::from(hash.finalize())
    })
}

impl<DB: Backend> WorkerAction for Keeper<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, OutboxError> {
        // A lease that cannot be renewed is no reason to be taken for dead.
        let renewed = self.renew().await;
        let announced = self.announce().await;
        if renewed.is_err() || announced.is_err() {
            self.failures = self.failures.saturating_add(1);
        } else if std::mem::take(&mut self.failures) >= OUTAGE {
            // Where others read it can be that nobody could write.
            self.engine.note_contact();
        }
        announced?;
        renewed?;
        Ok(Directive::sleep(self.interval))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn shares(processes: &[&Incarnation]) -> HashMap<String, Vec<i64>> {
        let mut shares: HashMap<String, Vec<i64>> = HashMap::new();
        for id in 0..256 {
            let owner = owner(PartitionId(id), processes).expect("somebody owns it");
            shares.entry(owner.0.clone()).or_default().push(id);
        }
        shares
    }

    #[test]
    fn a_process_that_leaves_moves_only_its_share() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Incarnation(name.to_owned()));
        let all = shares(&[&a, &b, &c]);
        for share in all.values() {
            assert!(
                (50..=120).contains(&share.len()),
                "{} of 256 for one of three",
                share.len()
            );
        }
        let two = shares(&[&c, &a]);
        for stays in ["a", "c"] {
            assert!(
                all[stays].iter().all(|id| two[stays].contains(id)),
                "{stays} keeps its own"
            );
        }
        assert_eq!(two["a"].len() + two["c"].len(), 256);
    }

    #[test]
    fn nobody_owns_what_nobody_handles() {
        assert_eq!(owner(PartitionId(1), &[]), None);
    }
}
