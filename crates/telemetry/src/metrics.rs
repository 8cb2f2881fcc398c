//! Metrics, for Prometheus to scrape and for a collector to be sent.
//!
//! Instruments are made with [`counter`], [`gauge`], [`histogram`] and [`observe`] from what [`registry`] names, through the API
//! of OpenTelemetry. Without [`install`] they do nothing and cost nothing. With it, an [`Exporter`] serves them at `GET /metrics`,
//! and a [`Collector`] is sent them every quarter of a minute: either, or both.
//!
//! Every value of a label is a series for as long as the process lives. So values that come from outside go through [`Labels`],
//! which keep them few.

mod capped;
mod labels;
mod otlp;
pub mod registry;
mod serve;

use std::sync::{Arc, PoisonError, RwLock};

use opentelemetry::global;
pub use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Counter, Gauge, Histogram, Meter, ObservableGauge},
};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use self::registry::Metric;
pub use self::{
    capped::Capped,
    labels::{ByTenant, Labels, OTHER},
    otlp::Collector,
};
use crate::{Error, FLUSH_BOUND, traces::resource};

/// Whom instruments are from; one name for all, as processes differ by their resource.
const SCOPE: &str = "remuda";

/// Bounds of what is measured in seconds: from what a hop within a machine takes to what a long run takes.
const SECONDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    1800.0, 7200.0,
];
/// Bounds of what is counted.
const COUNTS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// What is measured, and for whom.
#[derive(Debug)]
pub struct Settings {
    pub service_name: String,
    /// Whether metrics say whose they are.
    pub tenant_label: bool,
    /// Different values that a label may have whose values come from outside.
    pub max_label_values: usize,
    /// Whether to make an [`Exporter`].
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

/// Starts measuring, for the whole process. Instruments made before stay idle, so this comes first.
pub fn install(settings: Settings) -> Result<(Option<Exporter>, Measuring), Error> {
    let labels = Labels::new(settings.tenant_label, settings.max_label_values);
    let (exporter, provider) = provider(settings)?;
    *LABELS.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(labels));
    global::set_meter_provider(provider.clone());
    Ok((exporter, Measuring(provider)))
}

/// Whether anybody gets to see what is measured: for what would have to be looked up first.
#[must_use]
pub fn is_installed() -> bool {
    LABELS.read().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Keeps the labels of this process few.
#[must_use]
pub fn labels() -> Arc<Labels> {
    let installed = LABELS.read().unwrap_or_else(PoisonError::into_inner).clone();
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

/// What measures. Given to [`Guard::keep`](crate::Guard::keep), which tells the collector the last of it.
#[derive(Debug)]
pub struct Measuring(SdkMeterProvider);

impl Measuring {
    /// Sends what was not sent yet. Blocks for at most about [`FLUSH_BOUND`].
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_BOUND) {
            tracing::warn!(%error, "the last metrics may be lost");
        }
    }
}

/// Turns what was measured into text.
#[derive(Clone, Debug)]
pub struct Exporter {
    registry: Registry,
}

impl Exporter {
    /// Everything measured so far, in the text format of Prometheus.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// A number that only grows.
#[must_use]
pub fn counter(metric: &Metric) -> Counter<u64> {
    metric.counter(&global::meter(SCOPE))
}

/// The same with fractions, such as money.
#[must_use]
pub fn amount(metric: &Metric) -> Counter<f64> {
    let Metric { name, unit, description, .. } = *metric;
    global::meter(SCOPE).f64_counter(name).with_unit(unit).with_description(description).build()
}

/// A number that goes up and down.
#[must_use]
pub fn gauge(metric: &Metric) -> Gauge<f64> {
    metric.gauge(&global::meter(SCOPE))
}

/// How many were how large.
#[must_use]
pub fn histogram(metric: &Metric) -> Histogram<f64> {
    metric.histogram(&global::meter(SCOPE))
}

/// A number that is looked up whenever someone wants to know it. `look` must be quick, and is called for as long as the process
/// lives: what it does not tell any more is not there any more.
pub fn observe(
    metric: &Metric,
    look: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
) -> ObservableGauge<f64> {
    let Metric { name, unit, description, .. } = *metric;
    let meter = global::meter(SCOPE);
    let builder = meter.f64_observable_gauge(name);
    builder.with_unit(unit).with_description(description).with_callback(look).build()
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
mod documented;
#[cfg(test)]
mod tests;
