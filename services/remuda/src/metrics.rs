//! The metrics of a serving process, where the configuration asks for them.

use std::{net::SocketAddr, time::Duration};

use remuda_config::Telemetry;
use remuda_domain::{Error, error::Result};
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
    /// Starts measuring, if a place to scrape is configured. Comes before anything that measures.
    pub(crate) async fn start(settings: &Telemetry) -> Result<Option<Self>> {
        let Some(address) = settings.metrics_listen else { return Ok(None) };
        let refused = |error| {
            Error::unavailable(format!("cannot listen on {address}"))
                .at("telemetry.metrics_listen")
                .with_source(error)
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let exporter = remuda_telemetry::metrics::install(&settings.service_name)
            .map_err(|error| Error::internal("metrics cannot be collected").with_source(error))?;
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
