//! The metrics of a serving process, where the configuration asks for them: to be scraped, sent to a collector, or both.

use std::{net::SocketAddr, time::Duration};

use remuda_config::Telemetry;
use remuda_domain::{Error, error::Result};
use remuda_telemetry::{
    Guard,
    metrics::{Collector, Settings},
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const GOODBYE: Duration = Duration::from_millis(500);

/// Answers scrapers until it is stopped: after the process's own work, so that its end can be seen too.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Metrics {
    /// Starts measuring, if anybody wants to know. Comes before anything that measures. What is sent to a collector is sent until
    /// `telemetry` is shut down.
    pub(crate) async fn start(
        settings: &Telemetry,
        service_name: String,
        telemetry: &mut Guard,
    ) -> Result<Option<Self>> {
        let listener = match settings.metrics_listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let runtime = telemetry.runtime().filter(|_| settings.otlp_metrics);
        let collector =
            runtime.map(|runtime| Collector { endpoint: settings.otlp_endpoint.clone(), runtime });
        if listener.is_none() && collector.is_none() {
            return Ok(None);
        }
        let (exporter, measuring) = remuda_telemetry::metrics::install(Settings {
            service_name,
            tenant_label: settings.tenant_label,
            max_label_values: settings.max_label_values as usize,
            scraped: listener.is_some(),
            collector,
        })
        .map_err(|error| Error::internal("metrics cannot be collected").with_source(error))?;
        telemetry.keep(measuring);
        let (Some((listener, address)), Some(exporter)) = (listener, exporter) else { return Ok(None) };
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(exporter.serve(listener, stop.clone()));
        Ok(Some(Self { address, stop, tasks }))
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        // A scraper in the middle of its work gets a moment and no more.
        drop(tokio::time::timeout(GOODBYE, self.tasks.wait()).await);
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let refused = |error| {
        Error::unavailable(format!("cannot listen on {address}"))
            .at("telemetry.metrics_listen")
            .with_source(error)
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok((listener, address))
}
