//! Traces and metrics to an OpenTelemetry collector, over HTTP, as its own environment variables say.

use metrics_exporter_opentelemetry::Recorder;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::{Level, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{Filtered, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;

/// Where the environment says where the collector is.
const ENDPOINTS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];
/// What the process is called, unless OTEL_SERVICE_NAME says otherwise.
const SERVICE: &str = "outbox";

/// The connection to a collector.
pub(crate) struct Otlp {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
    pub(crate) recorder: Recorder,
}

impl Otlp {
    /// If the environment says where to.
    pub(super) fn start() -> Result<Option<Self>, Failure> {
        let asked = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        if !ENDPOINTS.iter().any(asked) {
            return Ok(None);
        }
        let failed = |error: opentelemetry_otlp::ExporterBuildError| {
            Failure::usage(format!("nothing can be sent to a collector: {error}"))
                .way_out(format!("see {}", ENDPOINTS.join(", ")))
        };
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let resource = resource.build();
        let spans = SpanExporter::builder()
            .with_http()
            .build()
            .map_err(failed)?;
        let traces = SdkTracerProvider::builder()
            .with_batch_exporter(spans)
            .with_resource(resource.clone())
            .build();
        let points = MetricExporter::builder()
            .with_http()
            .build()
            .map_err(failed)?;
        let (metrics, recorder) = Recorder::builder(SERVICE)
            .with_meter_provider(|provider| {
                provider
                    .with_periodic_exporter(points)
                    .with_resource(resource)
            })
            .build();
        Ok(Some(Self {
            traces,
            metrics,
            recorder,
        }))
    }

    /// What turns our spans into theirs: not those of the libraries beneath, which send them.
    pub(super) fn layer<S>(&self) -> Filtered<OpenTelemetryLayer<S, SdkTracer>, Targets, S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = Targets::new().with_target("outbox", Level::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(self.traces.tracer(SERVICE))
            .with_filter(ours)
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        for sent in [self.traces.shutdown(), self.metrics.shutdown()] {
            if let Err(error) = sent {
                tracing::warn!(%error, "the last of it was not sent");
            }
        }
    }
}
