//! oxide-outbox (crates outbox-core and outbox-postgres): one worker that publishes events one by one
//! and marks them sent. No partitions; order only as far as one worker goes, and not across retries.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use bench_contract::{Message, Sink, Start, System, Task};
use outbox_core::prelude::{
    Event, NoIdempotency, OutboxConfig, OutboxError, OutboxManagerBuilder, OutboxService, Transport,
};
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use sqlx_before::PgPool;
use sqlx_before::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pool::text;

/// The schema its documentation asks users to create.
const SCHEMA: &str = "
CREATE TYPE status AS ENUM ('Pending', 'Processing', 'Sent');
CREATE TABLE outbox_events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), idempotency_token text DEFAULT NULL,
    event_type text NOT NULL, payload jsonb NOT NULL, status status NOT NULL DEFAULT 'Pending',
    created_at timestamptz NOT NULL DEFAULT now(),
    locked_until timestamptz NOT NULL DEFAULT '-infinity');
CREATE INDEX idx_outbox_processing_queue ON outbox_events (locked_until ASC, status)
    WHERE status IN ('Pending', 'Processing');
CREATE UNIQUE INDEX idx_outbox_idempotency ON outbox_events (idempotency_token);
CREATE FUNCTION notify_outbox_event() RETURNS trigger AS $$
BEGIN PERFORM pg_notify('outbox_event', 'ping'); RETURN new; END; $$ LANGUAGE plpgsql;
CREATE TRIGGER outbox_events_notify_trigger AFTER INSERT OR UPDATE ON outbox_events
    FOR EACH ROW EXECUTE FUNCTION notify_outbox_event();";

struct Noting(Arc<Sink>);

#[async_trait::async_trait]
impl Transport<String> for Noting {
    async fn publish(&self, event: Event<String>) -> Result<(), OutboxError> {
        self.0.handle([event.payload.as_value().as_bytes()]);
        Ok(())
    }
}

pub(crate) struct OxideOutbox {
    pool: PgPool,
    config: Arc<OutboxConfig<String>>,
    service: OutboxService<PostgresWriter, NoIdempotency, String>,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl System for OxideOutbox {
    async fn connect(task: &Task) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(task.pool)
            .min_connections(task.pool)
            .acquire_timeout(Duration::from_secs(60))
            .test_before_acquire(false);
        let mut config = OutboxConfig::default();
        config.batch_size = 1000;
        config.poll_interval_secs = 1;
        let config = Arc::new(config);
        Ok(Self {
            pool: pool.connect(&task.url).await?,
            service: OutboxService::new(Arc::new(PostgresWriter), Arc::clone(&config)),
            config,
            running: None,
        })
    }

    async fn prepare(&mut self, _: &Task) -> Result<()> {
        sqlx_before::raw_sql(SCHEMA).execute(&self.pool).await?;
        Ok(())
    }

    async fn start(&mut self, _: &Task, start: Start) -> Result<()> {
        let Start::Handlers(sink) = start else {
            return Ok(());
        };
        let (stop, stopped) = watch::channel(false);
        let storage = PostgresOutbox::new(self.pool.clone(), Arc::clone(&self.config));
        let manager = OutboxManagerBuilder::new()
            .storage(Arc::new(storage))
            .publisher(Arc::new(Noting(sink)))
            .config(Arc::clone(&self.config))
            .shutdown_rx(stopped)
            .build()
            .map_err(|error| anyhow!("{error}"))?;
        let running = tokio::spawn(async move {
            if let Err(error) = manager.run().await {
                eprintln!("oxide-outbox: {error}");
            }
        });
        self.running = Some((stop, running));
        Ok(())
    }

    async fn produce(&self, messages: Vec<Message>) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        // It has no call for several events.
        for message in &messages {
            self.service
                .add_event("bench", text(message), None, &mut *transaction)
                .await
                .map_err(|error| anyhow!("{error}"))?;
        }
        Ok(transaction.commit().await?)
    }

    async fn stop(self) -> Result<()> {
        if let Some((stop, running)) = self.running {
            stop.send(true).ok();
            running.abort();
        }
        Ok(())
    }
}
