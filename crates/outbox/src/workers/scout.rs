//! Finds work by looking: what other processes, other languages and plain transactions committed and
//! what nobody has claimed. The path that correctness rests on; signals only make it faster.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Look, PartitionId, Pulse, Survey};
use crate::engine::{ClaimPermit, Engine, lock};
use crate::error::OutboxError;
use crate::patience::{FIRST, Patience, SCOUTS_LONGEST, answer_within};

/// How often to look when nothing happens.
const IDLE_PROBE: Duration = Duration::from_millis(80);
/// How soon to look after an enqueue whose commit nobody will announce; doubled each time.
const FIRST_PROBE: Duration = Duration::from_millis(1);
const LAST_PROBE: Duration = Duration::from_millis(50);
/// A look that takes long is followed by a rest of so many times as long,
const REST_FOR_LOOK: u32 = 10;
/// but no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Pending work that nobody claimed for so long is anyone's.
const UNCLAIMED: Duration = Duration::from_secs(2);

/// How often waits for locks are ended at most, and how long that may take: whoever looks has other things
/// to do.
const END_WAITS: Duration = Duration::from_secs(1);
const ENDING_WAITS: Duration = Duration::from_millis(500);

/// What was last seen of a partition's holder, and since when.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    pulse: Pulse,
    free: bool,
    since: Instant,
}

#[derive(Debug)]
pub(crate) struct Scout<DB: Backend> {
    engine: Arc<Engine<DB>>,
    partition_ids: Vec<PartitionId>,
    patience: Patience,
    sightings: HashMap<PartitionId, Sighting>,
    probe: Duration,
    looked: Instant,
    /// How long to rest after the last look when nothing happens.
    idle: Duration,
    due: Instant,
    lost_contact: bool,
    /// When what waited for locks was last ended.
    ended_waits: Instant,
}

impl<DB: Backend> Scout<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>) -> Self {
        Self {
            partition_ids: engine.partition_ids(),
            patience: Patience::new(SCOUTS_LONGEST, engine.contact.subscribe()),
            engine,
            sightings: HashMap::new(),
            probe: IDLE_PROBE,
            looked: Instant::now(),
            idle: IDLE_PROBE,
            due: Instant::now(),
            lost_contact: false,
            ended_waits: Instant::now(),
        }
    }

    /// Whether to look now; if not, how long to wait. Woken by an enqueue the first look is due soon
    /// after, for the transaction is still open; when that was announced meanwhile there is no need.
    fn due(&mut self) -> Result<(), Duration> {
        let now = Instant::now();
        if self.engine.look_now.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        if lock(&self.engine.unannounced).is_empty() {
            self.probe = IDLE_PROBE;
            self.due = self.looked + self.idle;
        } else if self.probe == IDLE_PROBE {
            self.probe = FIRST_PROBE;
            self.due = self.due.min(now + FIRST_PROBE);
        }
        match self.due.checked_duration_since(now) {
            None | Some(Duration::ZERO) => Ok(()),
            Some(rest) => Err(rest),
        }
    }

    /// When to look again: soon after an enqueue, less often the longer it was ago. While enqueues
    /// go on it stays at the last probe; each step would find what the one before did not.
    fn next_probe(&mut self) -> Duration {
        let mut unannounced = lock(&self.engine.unannounced);
        self.probe = if unannounced.is_empty() {
            IDLE_PROBE
        } else if self.probe == IDLE_PROBE {
            FIRST_PROBE
        } else if self.probe >= LAST_PROBE {
            unannounced.give_up();
            LAST_PROBE
        } else {
            (self.probe * 2).min(LAST_PROBE)
        };
        self.looked = Instant::now();
        let rest = if self.probe == IDLE_PROBE {
            self.idle
        } else {
            self.probe
        };
        self.due = self.looked + rest;
        rest
    }

    /// Ends what waits for locks and keeps connections that are missed. What nobody waits for any more would
    /// pile up in the server: a look behind a locked table, every two seconds.
    async fn end_waits(&mut self) {
        let store = &self.engine.store;
        if self.ended_waits.elapsed() < END_WAITS || !store.workers.was_missed() {
            return;
        }
        if let Err(error) = answer_within(ENDING_WAITS, DB::end_waits(store, FIRST)).await {
            tracing::debug!(%error, "what waits for a lock goes on waiting");
        }
        self.ended_waits = Instant::now();
    }

    fn note(&mut self, survey: &Survey, now: Instant) {
        if survey.unsequenced {
            self.engine.mark([survey.partition_id]);
        }
        let Some(desk) = self.engine.desks.get(&survey.partition_id) else {
            return;
        };
        if !survey.pending {
            return;
        }
        let free = survey.holder.is_none() || survey.expired;
        let sighting = Sighting {
            pulse: survey.pulse,
            free,
            since: now,
        };
        let seen = self
            .sightings
            .entry(survey.partition_id)
            .or_insert(sighting);
        if (seen.pulse, seen.free) != (survey.pulse, free) {
            *seen = sighting;
        }
        let stood_still = now - seen.since;
        let lease = Duration::from_millis(u64::try_from(survey.lease_millis).unwrap_or(0));
        let mut note = desk.note();
        note.permit = if free && stood_still >= UNCLAIMED {
            Some(ClaimPermit::Unclaimed)
        } else if !free && stood_still >= lease {
            Some(ClaimPermit::Stale(survey.pulse))
        } else {
            None
        };
        // What was handled and is written down within a moment is not waiting for anybody.
        let owed = note.owed.as_ref().map(|owed| owed.settlement.cursor);
        let waits = owed.is_none_or(|handled| handled < survey.last_seq);
        let held = note.lease.is_some();
        let due = held && !note.handling && waits || note.permit.is_some() || (note.ours && free);
        drop(note);
        if due {
            desk.bell.notify_one();
        }
    }
}

impl<DB: Backend> WorkerAction for Scout<DB> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, OutboxError> {
        if let Err(rest) = self.due() {
            return Ok(Directive::sleep(rest));
        }
        self.end_waits().await;
        let survey = DB::survey(&self.engine.store, &self.partition_ids);
        let Look { surveys, took } = match self.patience.hear(survey).await {
            Ok(look) => look,
            Err(error) => {
                if !std::mem::replace(&mut self.lost_contact, true) {
                    tracing::warn!(%error, "no answer from the database, or no free connection");
                }
                return Ok(Directive::sleep(IDLE_PROBE));
            }
        };
        let now = Instant::now();
        let rest = took.saturating_mul(REST_FOR_LOOK);
        self.idle = IDLE_PROBE.max(rest.min(LONGEST_REST));
        if std::mem::take(&mut self.lost_contact) {
            tracing::info!("the database answers again");
            self.engine.note_contact();
        }
        let pending: HashSet<PartitionId> = surveys
            .iter()
            .filter(|survey| survey.pending)
            .map(|survey| survey.partition_id)
            .collect();
        self.sightings.retain(|id, _| pending.contains(id));
        for survey in &surveys {
            self.note(survey, now);
        }
        Ok(Directive::sleep(self.next_probe()))
    }
}
