//! Metrics over OTLP/gRPC.

use std::time::Duration;

use opentelemetry_otlp::{
    MetricExporter, WithExportConfig, WithTonicConfig, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::metrics::PeriodicReader;
use tokio::runtime::Handle;

use crate::{Error, FLUSH_BOUND};

/// How often the collector is told. What is sent is everything so far, so one that was away misses nothing but the way there.
const EVERY: Duration = Duration::from_secs(15);

/// Who is sent the metrics. One that is slow, unreachable or gone costs metrics and nothing else: a thread of its own waits for it,
/// no longer than [`FLUSH_BOUND`] each time, and what is measured meanwhile takes no more room.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Such as `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// What its connection lives on: that of the traces, see [`Guard::runtime`](crate::Guard::runtime).
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
        Ok(PeriodicReader::builder(exporter).with_interval(EVERY).build())
    }
}

#[cfg(test)]
#[path = "otlp_tests.rs"]
mod tests;
