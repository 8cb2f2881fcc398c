//! Metrics for Prometheus and for an OpenTelemetry collector.
//!
//! [`counter`], [`gauge`], [`histogram`] and [`observe`] create instruments for the metrics of [`registry`]. Without
//! [`install`] instruments do nothing and cost nothing. With it, an [`Exporter`] serves them at `GET /metrics`, a
//! [`Collector`] receives them every 15 seconds, or both.
//!
//! Every label value is a time series for the lifetime of the process. So values from outside go through [`Labels`], which
//! limits their number.

mod label_limiter;
mod labels;
mod otlp;
pub mod registry;
mod serve;

use std::sync::Arc;

use opentelemetry::global;
pub use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Counter, Gauge, Histogram, Meter, ObservableGauge},
};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::RwLock;
use prometheus::{Registry, TextEncoder};

use self::registry::Metric;
pub use self::{
    label_limiter::LabelLimiter,
    labels::{ByTenant, Labels, OTHER},
    otlp::Collector,
};
use crate::{Error, FLUSH_BOUND, traces::resource};

/// The instrumentation scope; the same for all processes, which differ by their resource.
const SCOPE: &str = "remuda";

/// Histogram buckets for seconds: from a local hop to a long run.
const SECONDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    1800.0, 7200.0,
];
/// Histogram buckets for counts.
const COUNTS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Settings of the metrics.
#[derive(Debug)]
pub struct Settings {
    pub service_name: String,
    /// Whether metrics have a label for the tenant.
    pub tenant_label: bool,
    /// Limit of distinct values for labels with values from outside.
    pub max_label_values: usize,
    /// Whether to create an [`Exporter`].
    pub scraped: bool,
    pub collector: Option<Collector>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            service_name: "remuda".to_owned(),
            tenant_label: false,
            max_label_values: 100,
            scraped: true,
            collector: None,
        }
    }
}

/// The labels of this process. Replaced by [`install`].
static LABELS: RwLock<Option<Arc<Labels>>> = RwLock::new(None);

/// Installs metrics for the whole process. Call it first: instruments created before do nothing.
pub fn install(settings: Settings) -> Result<(Option<Exporter>, MetricsGuard), Error> {
    let labels = Labels::new(settings.tenant_label, settings.max_label_values);
    let (exporter, provider) = provider(settings)?;
    *LABELS.write() = Some(Arc::new(labels));
    global::set_meter_provider(provider.clone());
    Ok((exporter, MetricsGuard(provider)))
}

/// Whether metrics are installed, to skip lookups that only serve metrics.
#[must_use]
pub fn is_installed() -> bool {
    LABELS.read().is_some()
}

/// The label limits of this process.
#[must_use]
pub fn labels() -> Arc<Labels> {
    let installed = LABELS.read().clone();
    installed.unwrap_or_default()
}

fn provider(settings: Settings) -> Result<(Option<Exporter>, SdkMeterProvider), Error> {
    let mut builder = SdkMeterProvider::builder().with_resource(resource(&settings.service_name));
    if let Some(collector) = settings.collector {
        builder = builder.with_reader(collector.reader()?);
    }
    let mut exporter = None;
    if settings.scraped {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .map_err(Error::Metrics)?;
        builder = builder.with_reader(reader);
        exporter = Some(Exporter { registry });
    }
    Ok((exporter, builder.build()))
}

/// Flushes metrics at shutdown. Pass it to [`Guard::attach_metrics`](crate::Guard::attach_metrics).
#[derive(Debug)]
pub struct MetricsGuard(SdkMeterProvider);

impl MetricsGuard {
    /// Flushes the metrics. Blocks for at most about [`FLUSH_BOUND`].
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_BOUND) {
            tracing::warn!(%error, "flushing metrics failed; the last metrics may be lost");
        }
    }
}

/// Exports metrics for Prometheus.
#[derive(Clone, Debug)]
pub struct Exporter {
    registry: Registry,
}

impl Exporter {
    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Creates a counter.
#[must_use]
pub fn counter(metric: &Metric) -> Counter<u64> {
    metric.counter(&global::meter(SCOPE))
}

/// Creates a counter of fractions, such as money.
#[must_use]
pub fn float_counter(metric: &Metric) -> Counter<f64> {
    let Metric { name, unit, description, .. } = *metric;
    global::meter(SCOPE).f64_counter(name).with_unit(unit).with_description(description).build()
}

/// Creates a gauge.
#[must_use]
pub fn gauge(metric: &Metric) -> Gauge<f64> {
    metric.gauge(&global::meter(SCOPE))
}

/// Creates a histogram.
#[must_use]
pub fn histogram(metric: &Metric) -> Histogram<f64> {
    metric.histogram(&global::meter(SCOPE))
}

/// Creates a gauge whose value is read on each scrape. `callback` must be fast, and is called for the lifetime of the
/// process. A series that it does not report any more disappears.
pub fn observe(
    metric: &Metric,
    callback: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
) -> ObservableGauge<f64> {
    let Metric { name, unit, description, .. } = *metric;
    let meter = global::meter(SCOPE);
    let builder = meter.f64_observable_gauge(name);
    builder.with_unit(unit).with_description(description).with_callback(callback).build()
}

impl Metric {
    fn counter(&self, meter: &Meter) -> Counter<u64> {
        meter.u64_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }

    fn gauge(&self, meter: &Meter) -> Gauge<f64> {
        meter.f64_gauge(self.name).with_unit(self.unit).with_description(self.description).build()
    }

    fn histogram(&self, meter: &Meter) -> Histogram<f64> {
        let bounds: &[f64] = if self.unit == "s" { &SECONDS } else { &COUNTS };
        let builder = meter.f64_histogram(self.name).with_unit(self.unit).with_description(self.description);
        builder.with_boundaries(bounds.to_vec()).build()
    }
}

#[cfg(test)]
mod documentation_test;
#[cfg(test)]
mod tests;
