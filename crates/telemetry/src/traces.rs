//! Exports traces over OTLP/gRPC.

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig, WithTonicConfig, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use tokio::runtime::Runtime;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::{Error, FLUSH_BOUND, Options, span_queue::SpanQueue};

/// The exporter with its own runtime of one thread, so that the last spans are sent even if the process's runtime is busy
/// or shut down.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) provider: SdkTracerProvider,
    pub(crate) queue: SpanQueue,
    pub(crate) runtime: Runtime,
}

impl Traces {
    pub(crate) fn new(endpoint: &str, options: &Options) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("remuda-otlp")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let entered = runtime.enter();
        let mut exporter =
            SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(FLUSH_BOUND);
        if endpoint.starts_with("https:") {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter = exporter.build().map_err(Error::Exporter)?;
        let resource = resource(&options.service_name);
        let queue = SpanQueue::new(exporter, &resource);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue.clone())
            .with_sampler(sampler(options.sample_ratio))
            .with_resource(resource)
            .build();
        drop(entered);
        Ok(Self { provider, queue, runtime })
    }

    /// Flushes the queued spans.
    pub(crate) fn flush(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_BOUND) {
            tracing::warn!(%error, "flushing traces failed; the last spans may be lost");
        }
    }

    pub(crate) fn end(self) {
        // Does not block, and may be called on a thread of another runtime.
        self.runtime.shutdown_background();
    }
}

/// The target of spans that become part of traces. Others only serve logs.
pub const TRACE_TARGET: &str = "remuda_trace";

/// The layer that turns spans into traces. It is independent of the log filter: fewer log lines do not mean fewer traces.
pub(crate) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = Targets::new().with_target(TRACE_TARGET, LevelFilter::INFO);
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("remuda"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        // The current span is taken from `tracing` ([`context`](crate::context)), so activation at each poll is not needed.
        .with_context_activation(false)
        .with_filter(ours)
}

/// Follows the decision of a parent span; without a parent, samples the given share.
pub(crate) fn sampler(ratio: f64) -> Sampler {
    Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))
}

/// The identity of this process in traces and metrics.
pub(crate) fn resource(service_name: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", crate::instance()),
        ])
        .build()
}
