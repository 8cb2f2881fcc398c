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

use crate::{Error, FLUSH_BOUND, Options};

/// The exporter with the one thread its connection lives on. The thread is its own, so that the last spans still
/// leave while the process's runtime is busy or gone.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) provider: SdkTracerProvider,
    runtime: Runtime,
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
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler(options.sample_ratio))
            .with_resource(resource(&options.service_name))
            .build();
        drop(entered);
        Ok(Self { provider, runtime })
    }

    pub(crate) fn shutdown(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_BOUND) {
            tracing::warn!(%error, "the last traces may be lost");
        }
        // Waits for nothing, and may be called on a thread of another runtime.
        self.runtime.shutdown_background();
    }
}

/// Turns spans into traces. What is logged has no say in it: an operator who asks for fewer lines keeps the traces.
pub(crate) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    // The exporter's own work must not be exported: every export would cause the next.
    let targets = ["opentelemetry", "h2", "hyper", "tonic", "tower"]
        .into_iter()
        .fold(Targets::new().with_default(LevelFilter::INFO), |targets, name| {
            targets.with_target(name, LevelFilter::OFF)
        });
    tracing_opentelemetry::layer().with_tracer(provider.tracer("remuda")).with_filter(targets)
}

/// A parent's decision counts; without a parent the given part of traces is kept.
pub(crate) fn sampler(ratio: f64) -> Sampler {
    Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))
}

pub(crate) fn resource(service_name: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
        ])
        .build()
}
