//! What a command that runs for long tells of itself: a log on standard error, and, if it was built with the
//! feature `otlp` and the environment says where to, traces and metrics to an OpenTelemetry collector.

#[cfg(feature = "otlp")]
mod otlp;

use std::io;

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, Targets};
use tracing_subscriber::layer::{Filter, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use crate::failure::Failure;

/// Parts that would log payloads, or addresses with passwords, and how much of what they say is heard at most.
const DISCREET: [(&str, LevelFilter); 2] = [
    ("lapin::returned_messages", LevelFilter::ERROR),
    ("async_nats", LevelFilter::INFO),
];

/// What is logged. Whoever names one of the discreet parts has asked for what it says.
fn filter(level: &str) -> impl Filter<Registry> + use<> {
    let unnamed = DISCREET.into_iter();
    let unnamed = unnamed.filter(|(part, _)| !level.contains(part));
    let most = Targets::new().with_default(LevelFilter::TRACE);
    EnvFilter::new(level).and(most.with_targets(unnamed))
}

/// What is told to others. What was not sent yet is sent when it is dropped.
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    pub(crate) otlp: Option<otlp::Otlp>,
}

impl Telemetry {
    /// Begins to log, and to export where that was asked for. RUST_LOG wins over `level`.
    pub(crate) fn start(level: &str, json: bool) -> Result<Self, Failure> {
        let asked = std::env::var(EnvFilter::DEFAULT_ENV).ok();
        let asked = asked.filter(|asked| EnvFilter::try_new(asked).is_ok());
        let filter = filter(asked.as_deref().unwrap_or(level));
        let coloured = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        let log = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(coloured);
        let log = match json {
            true => log.json().flatten_event(true).boxed(),
            false => log.boxed(),
        };
        let registry = tracing_subscriber::registry().with(log.with_filter(filter));
        #[cfg(feature = "otlp")]
        {
            let otlp = otlp::Otlp::start()?;
            registry.with(otlp.as_ref().map(otlp::Otlp::layer)).init();
            Ok(Self { otlp })
        }
        #[cfg(not(feature = "otlp"))]
        {
            registry.init();
            Ok(Self {})
        }
    }

    /// Whether anything is sent to a collector.
    pub(crate) fn exports(&self) -> bool {
        #[cfg(feature = "otlp")]
        {
            self.otlp.is_some()
        }
        #[cfg(not(feature = "otlp"))]
        {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::Context;

    use super::*;
    use crate::lock;

    /// Writes down who was heard.
    struct Ear(Arc<Mutex<Vec<&'static str>>>);

    impl<S: Subscriber> tracing_subscriber::Layer<S> for Ear {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            lock(&self.0).push(event.metadata().target());
        }
    }

    fn heard(level: &str) -> Vec<&'static str> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Ear(Arc::clone(&heard)).with_filter(filter(level));
        let subscriber = tracing_subscriber::registry().with(ear);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(target: "async_nats::error", "");
            tracing::warn!(target: "async_nats::warn", "");
            tracing::info!(target: "async_nats::info", "");
            tracing::debug!(target: "async_nats::debug", "");
            tracing::warn!(target: "lapin::returned_messages", "");
            tracing::debug!(target: "outbox", "");
        });
        lock(&heard).clone()
    }

    #[test]
    fn discreet_parts_are_heard_no_louder_than_all_and_no_louder_than_they_may() {
        let (error, warn, info) = ("async_nats::error", "async_nats::warn", "async_nats::info");
        assert_eq!(heard("error"), [error]);
        assert_eq!(heard("warn"), [error, warn]);
        assert_eq!(heard("debug"), [error, warn, info, "outbox"]);
        assert_eq!(heard("outbox=debug"), ["outbox"]);
        let asked = [error, warn, info, "async_nats::debug"];
        assert_eq!(heard("error,async_nats=debug"), asked);
    }
}
