//! Exports metrics over OTLP/gRPC.

use std::time::Duration;

use opentelemetry_otlp::{
    MetricExporter, WithExportConfig, WithTonicConfig, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::metrics::PeriodicReader;
use tokio::runtime::Handle;

use crate::{Error, FLUSH_BOUND};

/// The export interval. Each export contains cumulative values, so a collector that was away only misses resolution.
const INTERVAL: Duration = Duration::from_secs(15);

/// The collector for metrics. A slow or unreachable one only costs metrics: a separate thread waits for it, at most
/// [`FLUSH_BOUND`] each time, and no data accumulates meanwhile.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Such as `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// The runtime for its connection, shared with the traces, see [`Guard::runtime`](crate::Guard::runtime).
    pub runtime: Handle,
}

impl Collector {
    pub(super) fn reader(self) -> Result<PeriodicReader<MetricExporter>, Error> {
        let _entered = self.runtime.enter();
        let mut exporter =
            MetricExporter::builder().with_tonic().with_endpoint(&self.endpoint).with_timeout(FLUSH_BOUND);
        if self.endpoint.starts_with("https:") {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter = exporter.build().map_err(Error::Exporter)?;
        Ok(PeriodicReader::builder(exporter).with_interval(INTERVAL).build())
    }
}

#[cfg(test)]
#[path = "otlp_tests.rs"]
mod tests;
