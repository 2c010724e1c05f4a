//! What a command that runs for long tells of itself: a log on standard error, and, if it was built with the
//! feature `otlp` and the environment says where to, traces and metrics to an OpenTelemetry collector.

#[cfg(feature = "otlp")]
mod otlp;

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::failure::Failure;

/// Parts that would log payloads, or addresses with passwords.
const DISCREET: &str = "lapin::returned_messages=error,async_nats=info";

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
        // What names one of those parts itself comes later, and wins.
        let level = asked.as_deref().unwrap_or(level);
        let filter = EnvFilter::new(format!("{DISCREET},{level}"));
        let log = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal());
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
