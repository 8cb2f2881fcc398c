//! Metrics, for Prometheus to scrape.
//!
//! Instruments are made with [`counter`] and [`gauge`] from what [`registry`] names, through the API of OpenTelemetry. Without
//! [`install`] they do nothing and cost nothing. With it, an [`Exporter`] serves them at `GET /metrics`.

pub mod registry;
mod serve;

use opentelemetry::global;
pub use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge},
};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use self::registry::Metric;
use crate::{Error, traces::resource};

/// Whom instruments are from; one name for all, as processes differ by their resource.
const SCOPE: &str = "remuda";

/// Turns what was measured into text.
#[derive(Clone, Debug)]
pub struct Exporter {
    registry: Registry,
}

/// Starts measuring, for the whole process. Instruments made before stay idle, so this comes first.
pub fn install(service_name: &str) -> Result<Exporter, Error> {
    let (exporter, provider) = Exporter::new(service_name)?;
    global::set_meter_provider(provider);
    Ok(exporter)
}

impl Exporter {
    fn new(service_name: &str) -> Result<(Self, SdkMeterProvider), Error> {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .map_err(Error::Metrics)?;
        let provider =
            SdkMeterProvider::builder().with_reader(reader).with_resource(resource(service_name)).build();
        Ok((Self { registry }, provider))
    }

    /// Everything measured so far, in the text format of Prometheus.
    fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// A number that only grows.
#[must_use]
pub fn counter(metric: &Metric) -> Counter<u64> {
    metric.counter(&global::meter(SCOPE))
}

/// A number that goes up and down.
#[must_use]
pub fn gauge(metric: &Metric) -> Gauge<f64> {
    metric.gauge(&global::meter(SCOPE))
}

#[cfg(test)]
mod tests;
