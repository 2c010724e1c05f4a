//! Signals between processes: NOTIFY and LISTEN, where whoever listens has a session of its own.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor as _, Postgres};

use super::Session;
use crate::backend::{Answer, Store, TablePrefix};
use crate::error::OutboxError;

/// How long the listener's connection may be silent before it is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(10);
/// A setting of the listener's session, made when it connects. A pooler does not let it pass.
const OWN_SESSION: (&str, &str) = ("outbox.listener", "own_session");
/// What poolers, and servers that do not know such settings, answer to it.
const REFUSED: [&str; 3] = ["08P01", "0A000", "42704"];

/// Hears signals; not where a pooler stands between us and the server: a session that listens would
/// be handed on to others, who do not expect to be told anything.
#[derive(Debug)]
pub struct Ear(Option<PgListener>);

pub(super) async fn signal(store: &Store<Postgres>) -> Answer<()> {
    let mut session = Session::open(store).await?;
    sqlx::query("SELECT PG_NOTIFY($1, '')")
        .bind(channel(&store.prefix))
        .execute(session.connection())
        .await?;
    session.end().await
}

pub(super) async fn listen(store: &Store<Postgres>) -> Answer<Ear> {
    let Some(mut listener) = own_session(store).await? else {
        tracing::warn!(
            "a pooler stands before the database: signals of other processes are not heard, and their \
             messages found a little later"
        );
        return Ok(Ear(None));
    };
    listener.listen(&channel(&store.prefix)).await?;
    Ok(Ear(Some(listener)))
}

/// Whether whoever connects gets a session of its own.
pub(super) async fn has_own_session(store: &Store<Postgres>) -> Answer<bool> {
    Ok(own_session(store).await?.is_some())
}

async fn own_session(store: &Store<Postgres>) -> Answer<Option<PgListener>> {
    // Not from the user's pool: a listener keeps its connection for ever.
    let options = PgConnectOptions::clone(&store.pool.connect_options());
    let own = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options.options([OWN_SESSION]));
    let mut listener = match PgListener::connect_with(&own).await {
        Ok(listener) => listener,
        Err(sqlx::Error::Database(error))
            if error.code().is_some_and(|code| REFUSED.contains(&&*code)) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let (name, value) = OWN_SESSION;
    let found: Option<String> = sqlx::query_scalar("SELECT CURRENT_SETTING($1, TRUE)")
        .bind(name)
        .fetch_one(&mut listener)
        .await?;
    Ok(Some(listener).filter(|_| found.as_deref() == Some(value)))
}

impl Ear {
    pub(super) async fn hear(&mut self) -> Answer<()> {
        let Some(listener) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(_))) => return Ok(()),
                // A lost connection: what was sent meanwhile is lost too.
                Ok(Ok(None)) => return Err(connection_lost()),
                Ok(Err(error)) => return Err(error.into()),
                // A quiet night, or a connection that was cut off without a word: asking tells.
                Err(_) => match tokio::time::timeout(SILENCE, listener.execute("SELECT 1")).await {
                    Ok(answer) => answer.map(drop)?,
                    Err(_) => return Err(connection_lost()),
                },
            }
        }
    }
}

fn connection_lost() -> OutboxError {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into()
}

/// The channel processes signal each other through.
fn channel(prefix: &TablePrefix) -> String {
    format!("{prefix}wake")
}
