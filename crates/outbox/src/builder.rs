//! From a pool and some queues to running workers. Bad configuration is refused here, before anything
//! runs.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Pool};
use tokio::sync::{Notify, watch};

use crate::backend::{Backend, Incarnation, Store, TablePrefix, TimeSource};
use crate::clock::Clock;
use crate::config::{LONGEST, LeaseConfig, OutboxConfig, SequencerConfig};
use crate::engine::{Desk, Engine, Queue};
use crate::error::OutboxError;
use crate::handle::OutboxHandle;
use crate::handler::{
    EachMessage, Handler, LeasedHandler, LeasedMessageHandler, Transactional, TransactionalHandler,
    TransactionalMessageHandler,
};
use crate::message::DEFAULT_ORIGIN;
use crate::metrics::{self, Meters, QueueMeters};
use crate::outbox::Outbox;
use crate::queue::{Partitions, QueueName};
use crate::schedule::Schedule;
use crate::tuning::{OutboxProfile, WorkerTuning};
use crate::workers::{self, Staff};

/// The largest payload unless configured otherwise.
pub const DEFAULT_MAX_PAYLOAD: usize = 1024 * 1024;
/// How long `stop` waits unless configured otherwise.
const DEFAULT_STOP_DEADLINE: Duration = Duration::from_secs(30);
/// How often the state of the queues is logged unless configured otherwise.
const DEFAULT_STATS_INTERVAL: Duration = Duration::from_mins(1);
/// Sequencers that always find a permit, and permits they share with the vacuum.
const DEFAULT_MAINTENANCE: (usize, usize) = (1, 1);

#[derive(Debug)]
struct QueueConfig<DB: Backend> {
    name: String,
    partitions: Partitions,
    handler: Option<Handler<DB>>,
    lease: LeaseConfig,
    max_attempts: Option<u32>,
    renew_up_to: Option<Duration>,
}

impl<DB: Backend> QueueConfig<DB> {
    fn unhandled(name: String, partitions: Partitions) -> Self {
        Self {
            name,
            partitions,
            handler: None,
            lease: LeaseConfig::default(),
            max_attempts: None,
            renew_up_to: None,
        }
    }
}

/// Configures an outbox. What is set for a queue applies to the queue named last.
#[derive(Debug)]
#[must_use = "nothing runs before `start`"]
pub struct OutboxBuilder<DB: Backend> {
    pool: Pool<DB>,
    profile: OutboxProfile,
    sequencer_tuning: Option<WorkerTuning>,
    processor_tuning: Option<WorkerTuning>,
    vacuum_tuning: Option<WorkerTuning>,
    reconciler_tuning: Option<WorkerTuning>,
    sequencer: SequencerConfig,
    processors: Option<usize>,
    maintenance: (usize, usize),
    table_prefix: String,
    origin: String,
    max_payload: usize,
    stop_deadline: Duration,
    auto_migrate: bool,
    staffed: bool,
    every_queue: bool,
    stats_interval: Duration,
    time: TimeSource,
    queues: Vec<QueueConfig<DB>>,
    misplaced: Option<&'static str>,
}

/// A queue that still needs to know who handles it.
#[derive(Debug)]
#[must_use = "say who handles the queue, or `produce_only`"]
pub struct QueueBuilder<DB: Backend> {
    builder: OutboxBuilder<DB>,
    name: String,
    partitions: Partitions,
}

impl<DB: Backend> QueueBuilder<DB> {
    /// Each message to a handler outside any transaction, at least once.
    pub fn leased(self, handler: impl LeasedMessageHandler + 'static) -> OutboxBuilder<DB> {
        let handler = Box::new(EachMessage(handler));
        self.handled_by(Some(Handler::Leased {
            handler,
            each: true,
        }))
    }

    /// Batches to a handler outside any transaction, at least once.
    pub fn batch_leased(self, handler: impl LeasedHandler + 'static) -> OutboxBuilder<DB> {
        let handler = Box::new(handler);
        self.handled_by(Some(Handler::Leased {
            handler,
            each: false,
        }))
    }

    /// Each message to a handler inside the transaction that settles it.
    pub fn transactional(
        self,
        handler: impl TransactionalMessageHandler<DB> + 'static,
    ) -> OutboxBuilder<DB> {
        let handler = Transactional::Message(Box::new(handler));
        self.handled_by(Some(Handler::Transactional(handler)))
    }

    /// Batches to a handler inside the transaction that settles them.
    pub fn batch_transactional(
        self,
        handler: impl TransactionalHandler<DB> + 'static,
    ) -> OutboxBuilder<DB> {
        let handler = Transactional::Batch(Box::new(handler));
        self.handled_by(Some(Handler::Transactional(handler)))
    }

    /// This process only writes to the queue; others handle it.
    pub fn produce_only(self) -> OutboxBuilder<DB> {
        self.handled_by(None)
    }

    fn handled_by(mut self, handler: Option<Handler<DB>>) -> OutboxBuilder<DB> {
        self.builder.queues.push(QueueConfig {
            handler,
            ..QueueConfig::unhandled(self.name, self.partitions)
        });
        self.builder
    }
}

impl<DB: Backend> OutboxBuilder<DB> {
    pub(crate) fn new(pool: Pool<DB>) -> Self {
        Self {
            pool,
            profile: OutboxProfile::default(),
            sequencer_tuning: None,
            processor_tuning: None,
            vacuum_tuning: None,
            reconciler_tuning: None,
            sequencer: OutboxConfig::default().sequencer,
            processors: None,
            maintenance: DEFAULT_MAINTENANCE,
            table_prefix: TablePrefix::default().to_string(),
            origin: DEFAULT_ORIGIN.to_owned(),
            max_payload: DEFAULT_MAX_PAYLOAD,
            stop_deadline: DEFAULT_STOP_DEADLINE,
            auto_migrate: false,
            staffed: true,
            every_queue: false,
            stats_interval: DEFAULT_STATS_INTERVAL,
            time: TimeSource::Clock,
            queues: Vec::new(),
            misplaced: None,
        }
    }

    /// The tuning of every worker at once.
    pub fn profile(mut self, profile: OutboxProfile) -> Self {
        self.profile = profile;
        self
    }

    /// The sequencer's tuning, whatever the profile says.
    pub fn sequencer_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.sequencer_tuning = Some(tuning);
        self
    }

    /// The processors' tuning, whatever the profile says.
    pub fn processor_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.processor_tuning = Some(tuning);
        self
    }

    /// The vacuum's tuning, whatever the profile says.
    pub fn vacuum_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.vacuum_tuning = Some(tuning);
        self
    }

    /// The reconciler's tuning, whatever the profile says.
    pub fn reconciler_tuning(mut self, tuning: WorkerTuning) -> Self {
        self.reconciler_tuning = Some(tuning);
        self
    }

    /// At most so many handlers at once. Default: one per partition, and of transactional ones, which have
    /// a connection each, half as many as the pool has connections.
    pub fn processors(mut self, n: usize) -> Self {
        self.processors = Some(n);
        self
    }

    /// How many maintenance workers may use the database at once: sequencers have `guaranteed`
    /// permits of their own, and share `shared` with the vacuum.
    pub fn maintenance(mut self, guaranteed: usize, shared: usize) -> Self {
        self.maintenance = (guaranteed, shared);
        self
    }

    /// The most partitions a sequencer takes on in one round.
    pub fn partition_batch_limit(mut self, n: u32) -> Self {
        self.sequencer.partition_batch_limit = n;
        self
    }

    /// The most steps a sequencer makes on one partition before the next has its turn.
    pub fn max_inner_iterations(mut self, n: u32) -> Self {
        self.sequencer.max_inner_iterations = n;
        self
    }

    /// What all table names begin with. Default `outbox_`.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// What this outbox is called where several meet: part of every message's
    /// [`identity`](crate::OutboxMessage::identity). As the name of a queue; default `outbox`.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = origin.into();
        self
    }

    /// The largest payload, in bytes. Default 1 MiB.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// How long [`OutboxHandle::stop`] waits for handlers; giving back what is held then takes at most
    /// five seconds more. Default 30 s.
    pub fn stop_deadline(mut self, deadline: Duration) -> Self {
        self.stop_deadline = deadline;
        self
    }

    /// Brings the schema up to date at `start` instead of only checking it.
    pub fn auto_migrate(mut self) -> Self {
        self.auto_migrate = true;
        self
    }

    /// No worker runs in this process: it enqueues, and other processes number, deliver and remove. Its
    /// account needs little more than to insert messages; one that may do more must have registered the
    /// queues. `transaction` and `flush` still wake the others where the database carries signals.
    pub fn without_workers(mut self) -> Self {
        self.staffed = false;
        self
    }

    /// Knows every queue that the database has at `start`, besides those that are named, and handles
    /// none of them: for tools that operate on the queues of others.
    pub fn every_queue(mut self) -> Self {
        self.every_queue = true;
        self
    }

    /// How often to log how each queue is doing. Default 1 min.
    pub fn stats_interval(mut self, interval: Duration) -> Self {
        self.stats_interval = interval;
        self
    }

    /// Lets a test step the database's clock: see [`testing::step_clock`](crate::testing::step_clock).
    #[cfg(feature = "testing")]
    pub fn movable_clock(mut self) -> Self {
        self.time = TimeSource::MovedClock;
        self
    }

    /// Adds a queue; say next who handles it.
    pub fn queue(self, name: impl Into<String>, partitions: Partitions) -> QueueBuilder<DB> {
        QueueBuilder {
            builder: self,
            name: name.into(),
            partitions,
        }
    }

    /// How long the lease of the last queue lasts.
    pub fn lease(mut self, lease: LeaseConfig) -> Self {
        match self.queues.last_mut() {
            Some(queue) => queue.lease = lease,
            None => self.misplaced = Some("lease"),
        }
        self
    }

    /// After so many failed attempts a message of the last queue goes to the dead letters.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        match self.queues.last_mut() {
            Some(queue) => queue.max_attempts = Some(attempts),
            None => self.misplaced = Some("max_attempts"),
        }
        self
    }

    /// Lets a handler of the last queue take up to `longest`, longer than its lease: a leased handler's
    /// lease is renewed meanwhile. A process that dies is still replaced when its lease runs out.
    pub fn renew_up_to(mut self, longest: Duration) -> Self {
        match self.queues.last_mut() {
            Some(queue) => queue.renew_up_to = Some(longest),
            None => self.misplaced = Some("renew_up_to"),
        }
        self
    }

    fn resolved_profile(&self) -> OutboxProfile {
        OutboxProfile {
            sequencer: self.sequencer_tuning.unwrap_or(self.profile.sequencer),
            processor: self.processor_tuning.unwrap_or(self.profile.processor),
            vacuum: self.vacuum_tuning.unwrap_or(self.profile.vacuum),
            reconciler: self.reconciler_tuning.unwrap_or(self.profile.reconciler),
        }
    }

    fn validate(&self) -> Result<(), OutboxError> {
        if let Some(setting) = self.misplaced {
            return Err(OutboxError::config(
                setting,
                "set",
                "set after the queue it is for",
            ));
        }
        if self.processors == Some(0) {
            return Err(OutboxError::config("processors", 0, "at least 1"));
        }
        if self.maintenance.0 + self.maintenance.1 == 0 || self.maintenance.1 == 0 {
            return Err(OutboxError::config(
                "maintenance",
                self.maintenance,
                "at least 1 shared",
            ));
        }
        if self.stats_interval.is_zero() {
            let (field, value) = ("stats_interval", self.stats_interval);
            return Err(OutboxError::config(field, value, "longer than 0"));
        }
        let profile = self.resolved_profile();
        for tuning in [
            profile.sequencer,
            profile.processor,
            profile.vacuum,
            profile.reconciler,
        ] {
            tuning.validate()?;
        }
        if self.origin.parse::<QueueName>().is_err() {
            let allowed = "ASCII letters, digits, '.', '_' and '-', starting and ending with a letter or digit";
            return Err(OutboxError::config("origin", &self.origin, allowed));
        }
        for (index, queue) in self.queues.iter().enumerate() {
            queue.name.parse::<QueueName>()?;
            if queue.handler.is_some() && !self.staffed {
                let (field, allowed) = (
                    "without_workers",
                    "only with queues that are `produce_only`",
                );
                return Err(OutboxError::config(field, &queue.name, allowed));
            }
            queue.lease.validate()?;
            if queue.max_attempts == Some(0) {
                return Err(OutboxError::config("max_attempts", 0, "at least 1"));
            }
            if let Some(longest) = queue.renew_up_to
                && longest < queue.lease.duration
            {
                let allowed = format!("at least lease.duration, {:?}", queue.lease.duration);
                return Err(OutboxError::config("renew_up_to", longest, allowed));
            }
            if let Some(longest) = queue.renew_up_to.filter(|longest| *longest > LONGEST) {
                return Err(OutboxError::config(
                    "renew_up_to",
                    longest,
                    "at most 24 days",
                ));
            }
            if self.queues[..index]
                .iter()
                .any(|earlier| earlier.name == queue.name)
            {
                return Err(OutboxError::config("queue", &queue.name, "named once"));
            }
        }
        Ok(())
    }

    /// Checks the configuration and the schema, registers the queues and starts the workers.
    pub async fn start(mut self) -> Result<OutboxHandle<DB>, OutboxError> {
        let engine = self.prepare().await?;
        let workers = workers::spawn(&engine, self.staff());
        Ok(OutboxHandle::new(Outbox { engine }, workers))
    }

    fn staff(&self) -> Staff {
        let (guaranteed, shared) = self.maintenance;
        Staff {
            processors: self.processors,
            guaranteed,
            shared,
            stats_interval: self.stats_interval,
            stop_deadline: self.stop_deadline,
        }
    }

    /// Everything but the workers.
    pub(crate) async fn prepare(&mut self) -> Result<Arc<Engine<DB>>, OutboxError> {
        self.validate()?;
        let prefix: TablePrefix = self.table_prefix.parse()?;
        let profile = self.resolved_profile();
        let mut sequencer = self.sequencer;
        sequencer.batch_size = profile.sequencer.batch_size;
        sequencer.poll_interval = profile.sequencer.idle_interval;
        sequencer.validate()?;

        let mut store = Store::new(self.pool.clone(), &prefix, self.time);
        store.habits = DB::habits(&self.pool).await?;
        if self.auto_migrate {
            DB::migrate_up(&store).await?;
        }
        if self.time == TimeSource::MovedClock {
            let table = store.prefix.fill("{prefix}clock");
            let clock =
                format!("CREATE TABLE IF NOT EXISTS {table} (moved_millis BIGINT NOT NULL)");
            DB::execute(&mut *store.pool.acquire().await?, AssertSqlSafe(clock)).await?;
        }
        let version = DB::schema_version(&store).await?;
        if version != crate::backend::SCHEMA_VERSION {
            return Err(OutboxError::SchemaVersion {
                found: version,
                expected: crate::backend::SCHEMA_VERSION,
            });
        }
        if self.every_queue {
            for (name, partitions) in DB::queues(&store).await? {
                if !self.queues.iter().any(|queue| queue.name == name) {
                    let partitions = Partitions::try_from(partitions)?;
                    self.queues.push(QueueConfig::unhandled(name, partitions));
                }
            }
        }
        let origin: Arc<str> = self.origin.as_str().into();
        metrics::describe();
        let mut queues = HashMap::new();
        for config in std::mem::take(&mut self.queues) {
            let name: QueueName = config.name.parse()?;
            let partition_ids = DB::register(&store, &name, config.partitions).await?;
            let queue = Queue {
                meters: QueueMeters::new(&origin, &name.shared()),
                name,
                origin: Arc::clone(&origin),
                partitions: config.partitions,
                partition_ids,
                handler: config.handler,
                lease: config.lease,
                max_attempts: config.max_attempts,
                renew_up_to: config.renew_up_to,
            };
            queues.insert(config.name, Arc::new(queue));
        }
        let queue_of = queues
            .values()
            .flat_map(|queue: &Arc<Queue<DB>>| {
                let ids = queue.partition_ids.iter();
                ids.map(|id| (*id, Arc::clone(queue)))
            })
            .collect();
        let desks = queues
            .values()
            .filter(|queue: &&Arc<Queue<DB>>| queue.handler.is_some())
            .flat_map(|queue| queue.partition_ids.iter().map(|id| (*id, Desk::default())))
            .collect();
        let clock = Clock::default();
        let schedule = Schedule::new((&profile.sequencer).into(), clock.now());
        Ok(Arc::new(Engine {
            store,
            queues,
            queue_of,
            meters: Meters::new(&origin),
            origin,
            incarnation: Incarnation(uuid::Uuid::now_v7().to_string()),
            clock,
            contact: watch::Sender::new(0),
            max_payload: self.max_payload,
            sequencer,
            profile,
            staffed: self.staffed,
            processors_limited: self.processors.is_some(),
            desks,
            schedule: Mutex::new(schedule),
            sequencer_bell: Arc::new(Notify::new()),
            scout_bell: Arc::new(Notify::new()),
            look_now: AtomicBool::new(true),
            unannounced: Mutex::default(),
            settled: Mutex::default(),
            vacuum_bell: Arc::new(Notify::new()),
            herald_bell: Arc::new(Notify::new()),
        }))
    }
}
