//! The background workers of a process, one file each: thin actions that run a stage of the pipeline
//! and answer when to run it again.

pub(crate) mod herald;
pub(crate) mod keeper;
pub(crate) mod processor;
pub(crate) mod reconciler;
pub(crate) mod scout;
pub(crate) mod sequencer;
pub(crate) mod stats;
pub(crate) mod vacuum;

use std::sync::Arc;
use std::time::Duration;

use taskward::{
    BackoffConfig, Bulkhead, BulkheadConfig, ConcurrencyLimit, PacingConfig, TaskSet,
    TracingListener, WorkerBuilder, poker,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::handler::Handler;
use crate::tuning::WorkerTuning;
use herald::{Herald, Listener};
use keeper::Keeper;
use processor::Processor;
use reconciler::Reconciler;
use scout::Scout;
use sequencer::Sequencer;
use stats::Stats;
use vacuum::Vacuum;

/// How many workers there are, and how long they have to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staff {
    /// The most handlers at once; `None`: one per partition, and of transactional ones no more than leave
    /// connections to others.
    pub(crate) processors: Option<usize>,
    /// Sequencers that always find a permit.
    pub(crate) guaranteed: usize,
    /// Permits they share with the vacuum.
    pub(crate) shared: usize,
    pub(crate) stats_interval: Duration,
    pub(crate) stop_deadline: Duration,
}

/// All workers of a process. Those who keep its leases stop last.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) cancel: CancellationToken,
    pub(crate) workers: TaskSet,
    pub(crate) keepers: TaskSet,
}

/// How long those rest after an error whom the database's first answer should find at work again.
const SHORT_REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// No pause between two executions: they wait by themselves.
const AT_ONCE: PacingConfig = PacingConfig {
    min_interval: Duration::ZERO,
    active_interval: Duration::ZERO,
    ramp_step: Duration::ZERO,
};

/// The one place that spawns workers.
pub(crate) fn spawn<DB: Backend>(engine: &Arc<Engine<DB>>, staff: Staff) -> Workers {
    let cancel = CancellationToken::new();
    let mut workers = TaskSet::new(cancel.clone()).shutdown_deadline(staff.stop_deadline);
    let profile = &engine.profile;
    let shared = Arc::new(Semaphore::new(staff.shared));
    let guaranteed = Arc::new(Semaphore::new(staff.guaranteed));
    let bulkhead = |name: &str, semaphore: ConcurrencyLimit, rest: (Duration, Duration)| {
        let (initial, max) = rest;
        let backoff = BackoffConfig {
            initial,
            max,
            ..Default::default()
        };
        Bulkhead::new(name, BulkheadConfig { semaphore, backoff })
    };
    let as_tuned = |tuning: &WorkerTuning| (tuning.retry_base, tuning.retry_max);
    // A worker's bell, rung once at the start, and its idle poll.
    let bells = |bell: &Arc<Notify>, tuning: &WorkerTuning| {
        bell.notify_one();
        let (poll, _) = poker(tuning.idle_interval, cancel.clone());
        (Arc::clone(bell), poll)
    };

    if DB::CARRIES_SIGNALS {
        let worker = WorkerBuilder::new("herald", cancel.clone())
            .notifier(Arc::clone(&engine.herald_bell))
            .bulkhead(bulkhead("herald", ConcurrencyLimit::Unlimited, SHORT_REST))
            .listener(TracingListener)
            .listener(engine.meters.errors("herald"))
            .build(Herald {
                engine: Arc::clone(engine),
                patience: engine.patience(),
            });
        workers.spawn("herald", worker.run());
    }
    // Leases are kept until the last handler has come to its end.
    let keeping = CancellationToken::new();
    let mut keepers = TaskSet::new(keeping.clone());
    if !engine.staffed {
        return Workers {
            cancel,
            workers,
            keepers,
        };
    }

    engine.sequencer_bell.notify_one();
    let bell = Arc::clone(&engine.sequencer_bell);
    let (poll, _) = poker(engine.sequencer.poll_interval, cancel.clone());
    for _ in 0..staff.guaranteed + staff.shared {
        let limit = ConcurrencyLimit::Tiered {
            guaranteed: Arc::clone(&guaranteed),
            shared: Arc::clone(&shared),
        };
        let worker = WorkerBuilder::new("sequencer", cancel.clone())
            .notifier(Arc::clone(&bell))
            .notifier(Arc::clone(&poll))
            .bulkhead(bulkhead("sequencer", limit, as_tuned(&profile.sequencer)))
            .listener(TracingListener)
            .listener(engine.meters.errors("sequencer"))
            .build(Sequencer::new(Arc::clone(engine)));
        workers.spawn("sequencer", worker.run());
    }

    let limit = staff.processors.map(|n| Arc::new(Semaphore::new(n)));
    // These have a connection each, also while they hang.
    let transactional_limit = limit
        .clone()
        .unwrap_or_else(|| Arc::new(Semaphore::new(engine.store.workers.crowd)));
    for queue in engine
        .queues
        .values()
        .filter(|queue| queue.handler.is_some())
    {
        for (partition, id) in (0..).zip(&queue.partition_ids) {
            let name = processor::worker_name(queue.name.as_str());
            let (bell, poll) = bells(&engine.desks[id].bell, &profile.processor);
            let limit = match queue.handler {
                Some(Handler::Transactional(_)) => Some(Arc::clone(&transactional_limit)),
                _ => limit.clone(),
            };
            let limit = limit.map_or_else(Default::default, ConcurrencyLimit::Fixed);
            let worker = WorkerBuilder::new(name.as_str(), cancel.clone())
                .notifier(bell)
                .notifier(poll)
                .pacing(profile.processor)
                .bulkhead(bulkhead(&name, limit, as_tuned(&profile.processor)))
                .listener(TracingListener)
                .listener(engine.meters.errors("processor"))
                .build(Processor::new(
                    Arc::clone(engine),
                    Arc::clone(queue),
                    partition,
                ));
            workers.spawn(name, worker.run());
        }
    }

    let (bell, poll) = bells(&engine.vacuum_bell, &profile.vacuum);
    let limit = ConcurrencyLimit::Fixed(Arc::clone(&shared));
    let worker = WorkerBuilder::new("vacuum", cancel.clone())
        .notifier(bell)
        .notifier(poll)
        .pacing(profile.vacuum)
        .bulkhead(bulkhead("vacuum", limit, as_tuned(&profile.vacuum)))
        .listener(TracingListener)
        .listener(engine.meters.errors("vacuum"))
        .build(Vacuum::new(Arc::clone(engine)));
    workers.spawn("vacuum", worker.run());

    let (poll, _) = poker(profile.reconciler.idle_interval, cancel.clone());
    let rest = as_tuned(&profile.reconciler);
    let worker = WorkerBuilder::new("reconciler", cancel.clone())
        .notifier(poll)
        .pacing(profile.reconciler)
        .bulkhead(bulkhead("reconciler", ConcurrencyLimit::Unlimited, rest))
        .listener(TracingListener)
        .listener(engine.meters.errors("reconciler"))
        .build(Reconciler {
            engine: Arc::clone(engine),
        });
    workers.spawn("reconciler", worker.run());

    let (poll, _) = poker(staff.stats_interval.min(stats::PUBLISH), cancel.clone());
    poll.notify_one();
    let worker = WorkerBuilder::new("stats", cancel.clone())
        .notifier(poll)
        .bulkhead(bulkhead("stats", ConcurrencyLimit::Unlimited, SHORT_REST))
        .listener(TracingListener)
        .listener(engine.meters.errors("stats"))
        .build(Stats::new(engine, staff.stats_interval));
    workers.spawn("stats", worker.run());

    let (beat, _) = poker(Duration::from_secs(1), keeping.clone());
    beat.notify_one();
    let worker = WorkerBuilder::new("keeper", keeping)
        .notifier(beat)
        .bulkhead(bulkhead("keeper", ConcurrencyLimit::Unlimited, SHORT_REST))
        .listener(TracingListener)
        .listener(engine.meters.errors("keeper"))
        .build(Keeper::new(Arc::clone(engine)));
    keepers.spawn("keeper", worker.run());

    if DB::CARRIES_SIGNALS {
        // Asks again after a lost connection, for nobody would ring it.
        let (again, _) = poker(Duration::from_secs(1), cancel.clone());
        again.notify_one();
        let worker = WorkerBuilder::new("listener", cancel.clone())
            .notifier(again)
            .pacing(AT_ONCE)
            .bulkhead(bulkhead(
                "listener",
                ConcurrencyLimit::Unlimited,
                SHORT_REST,
            ))
            .listener(TracingListener)
            .listener(engine.meters.errors("listener"))
            .build(Listener {
                engine: Arc::clone(engine),
                connection: None,
                patience: engine.patience(),
            });
        workers.spawn("listener", worker.run());
    }

    engine.look_now();
    let worker = WorkerBuilder::new("scout", cancel.clone())
        .notifier(Arc::clone(&engine.scout_bell))
        .listener(TracingListener)
        .listener(engine.meters.errors("scout"))
        .build(Scout::new(Arc::clone(engine)));
    workers.spawn("scout", worker.run());
    Workers {
        cancel,
        workers,
        keepers,
    }
}
