//! Traces over OTLP/gRPC.

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

use crate::{Error, FLUSH_BOUND, Options, export::Outlet};

/// The exporter with the one thread its connection lives on. The thread is its own, so that the last spans still
/// leave while the process's runtime is busy or gone.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) provider: SdkTracerProvider,
    pub(crate) outlet: Outlet,
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
        let outlet = Outlet::new(exporter, &resource);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(outlet.clone())
            .with_sampler(sampler(options.sample_ratio))
            .with_resource(resource)
            .build();
        drop(entered);
        Ok(Self { provider, outlet, runtime })
    }

    /// Sends what was not sent yet.
    pub(crate) fn flush(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_BOUND) {
            tracing::warn!(%error, "the last traces may be lost");
        }
    }

    pub(crate) fn end(self) {
        // Waits for nothing, and may be called on a thread of another runtime.
        self.runtime.shutdown_background();
    }
}

/// The target of spans that become part of traces. Others are for logs.
pub const TRACE_TARGET: &str = "remuda_trace";

/// Turns spans into traces. What is logged has no say in it: an operator who asks for fewer lines keeps the traces.
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
        // Whoever asks for the current span asks `tracing` ([`context`](crate::context)): nobody needs it twice at each poll.
        .with_context_activation(false)
        .with_filter(ours)
}

/// A parent's decision counts; without a parent the given part of traces is kept.
pub(crate) fn sampler(ratio: f64) -> Sampler {
    Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))
}

/// Who this process is, the same in its traces and its metrics.
pub(crate) fn resource(service_name: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", crate::instance()),
        ])
        .build()
}
