//! What the library and its driver log, for tests that read it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::conformance::stage::PATIENCE;

/// A log, and where it goes.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of this thread from now on, on which all workers of a test run if it has but one.
    pub(crate) fn keep(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        // Without spans: SQLite's threads would leave them in a log that is not this one.
        let events = filter_fn(move |metadata| !metadata.is_span() && *metadata.level() <= level);
        let subscriber = tracing_subscriber::registry().with(lines).with(events);
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// All of it.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Waits for a line with all of these in it.
    pub(crate) async fn says(&self, fields: &[&str]) {
        let logged = async {
            let mut looks = tokio::time::interval(Duration::from_millis(5));
            let says = |line: &str| fields.iter().all(|field| line.contains(field));
            while !self.text().lines().any(says) {
                looks.tick().await;
            }
        };
        let logged = tokio::time::timeout(PATIENCE, logged).await;
        assert!(logged.is_ok(), "no line with {fields:?}: {}", self.text());
    }
}
