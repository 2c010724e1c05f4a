//! The relay at work: a task per database, which starts an outbox as soon as the database lets it, and
//! stops it when it is told to.

use std::sync::Arc;
use std::time::Duration;

use outbox::{Backend, Outbox, OutboxHandle, Partitions, QueueName, Schema};
use outbox_sinks::{Sink as _, SinkExt as _};
use sqlx::Pool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{AnySink, Config, Database};
use crate::connection::{Any, AnyOutbox, Place, on};
use crate::failure::Failure;
use crate::server::{Desks, Readiness};

/// How long to wait before a database is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// What a queue gets that is not there yet, unless configured otherwise.
pub(super) const PARTITIONS: Partitions = Partitions::of(8);
/// Messages that a handler is given at once, at least.
const BATCH: u32 = 500;

/// The databases that are served.
#[derive(Debug)]
pub(super) struct Relay {
    stop: CancellationToken,
    databases: JoinSet<()>,
}

impl Relay {
    /// Begins to serve; the sinks are those of the routes.
    pub(super) fn start(
        config: &Config,
        sinks: Vec<AnySink>,
        ready: Arc<Readiness>,
        desks: Option<Arc<Desks>>,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            config: config.clone(),
            sinks,
            ready,
            desks,
        });
        let serve = |place| serve(Arc::clone(&shared), place, stop.clone());
        let databases = (0..config.databases.len()).map(serve).collect();
        Self { stop, databases }
    }

    /// Waits until a database is not served any more, which only a defect can cause.
    pub(super) async fn ended(&mut self) {
        self.databases.join_next().await;
    }

    /// Lets what is being published finish, and gives everything back. Only then are the sinks gone.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        while self.databases.join_next().await.is_some() {}
    }
}

/// What the databases have in common.
struct Shared {
    config: Config,
    sinks: Vec<AnySink>,
    ready: Arc<Readiness>,
    desks: Option<Arc<Desks>>,
}

async fn serve(shared: Arc<Shared>, place: usize, stop: CancellationToken) {
    let (config, sinks) = (&shared.config, &shared.sinks);
    let database = &config.databases[place];
    let name = database.name();
    let mut rest = RETRY.0;
    let handle = loop {
        let started = tokio::select! {
            () = stop.cancelled() => return,
            started = start(config, database, sinks) => started,
        };
        match started {
            Ok(handle) => break handle,
            Err(failure) => {
                shared.ready.note(name, Err(failure.on_one_line()));
                tracing::error!(database = name, again_in = ?rest, "cannot start: {}", failure.on_one_line());
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(rest) => rest = (rest * 2).min(RETRY.1),
        }
    };
    for (_, route) in config.routes_of(database) {
        let queues: Vec<&str> = route.queues().collect();
        tracing::info!(
            database = name,
            ?queues,
            to = route.destination(),
            "relaying"
        );
    }
    let _asked = on!(&handle, handle => shared.ready.watch(name, handle.outbox().clone()));
    let desk = show(&shared, database, &stop).await;
    stop.cancelled().await;
    if let Some(desk) = desk {
        on!(desk, desk => desk.stop().await);
    }
    let report = on!(handle, handle => handle.stop().await);
    if !report.is_clean() {
        tracing::warn!(database = name, %report, "not everything ended in time; it comes again");
    }
}

/// Puts the database on the dashboard, if there is one: with every queue, and connections of its own.
async fn show(shared: &Shared, database: &Database, stop: &CancellationToken) -> Option<AnyOutbox> {
    let desks = shared.desks.as_ref()?;
    loop {
        let place = Place::of(database);
        match stop.run_until_cancelled(place.outbox(None)).await? {
            Ok(desk) => {
                on!(&desk, desk => desks.open(database.name(), desk.outbox().clone()));
                return Some(desk);
            }
            Err(failure) => {
                tracing::warn!(
                    database = database.name(),
                    "no dashboard yet: {}",
                    failure.on_one_line()
                );
            }
        }
        let rest = tokio::time::sleep(RETRY.1);
        stop.run_until_cancelled(rest).await?;
    }
}

async fn start(
    config: &Config,
    database: &Database,
    sinks: &[AnySink],
) -> Result<AnyOutbox, Failure> {
    let place = Place::of(database);
    Ok(match place.pool(database.connections.get()).await? {
        Any::Postgres(pool) => Any::Postgres(outbox(pool, config, database, sinks).await?),
        Any::MySql(pool) => Any::MySql(outbox(pool, config, database, sinks).await?),
        Any::Sqlite(pool) => Any::Sqlite(outbox(pool, config, database, sinks).await?),
    })
}

/// A running outbox that delivers to the sinks of a database's routes.
async fn outbox<DB: Backend>(
    pool: Pool<DB>,
    config: &Config,
    database: &Database,
    sinks: &[AnySink],
) -> Result<OutboxHandle<DB>, Failure> {
    if database.migrate {
        Schema::new(pool.clone(), database.prefix()).up().await?;
    }
    let known = queues(&pool, database).await?;
    let profile = config.profile();
    let windows = config
        .routes_of(database)
        .map(|(place, _)| sinks[place].window());
    let window = u32::try_from(windows.max().unwrap_or(0)).unwrap_or(u32::MAX);
    let batch = profile.processor.batch_size.max(BATCH).max(window);
    let mut builder = Outbox::builder(pool)
        .profile(profile)
        .processor_tuning(profile.processor.batch_size(batch))
        .table_prefix(database.prefix().to_string())
        .origin(database.name())
        .stop_deadline(config.stop_deadline());
    for (place, route) in config.routes_of(database) {
        for queue in route.queues() {
            let there = known.iter().find(|(name, _)| name.as_str() == queue);
            let there = there.map(|(_, partitions)| *partitions);
            let partitions = there.or(route.partitions()).unwrap_or(PARTITIONS);
            builder = builder.queue(queue, partitions).sink(sinks[place].clone());
            builder = builder.lease(route.lease());
            if let Some(attempts) = route.max_attempts {
                builder = builder.max_attempts(attempts.get());
            }
        }
    }
    Ok(builder.start().await?)
}

/// The queues that a database has.
pub(super) async fn queues<DB: Backend>(
    pool: &Pool<DB>,
    database: &Database,
) -> Result<Vec<(QueueName, Partitions)>, Failure> {
    let operator = Place::of(database).open(pool.clone(), None).await?;
    let queues = operator.outbox().queues();
    operator.stop().await;
    Ok(queues)
}
