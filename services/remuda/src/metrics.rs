//! Metrics of a server process: scraped over HTTP, pushed to a collector, or both, as configured.

use std::{net::SocketAddr, time::Duration};

use remuda_config::Telemetry;
use remuda_domain::{Error, error::Result};
use remuda_telemetry::{
    Guard,
    metrics::{Collector, Settings, observe, registry::TLS_CERTIFICATE_EXPIRY},
};
use remuda_tls::ServerTls;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// The endpoint for scrapers. Stopped after the services, so that their shutdown can be scraped too.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Metrics {
    /// Starts collecting metrics, if configured. Must be called before any metric is recorded. Metrics are pushed to a collector
    /// until `telemetry` is shut down.
    pub(crate) async fn start(
        settings: &Telemetry,
        service_name: String,
        tls: Option<ServerTls>,
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
        let (exporter, metrics_guard) = remuda_telemetry::metrics::install(Settings {
            service_name,
            tenant_label: settings.tenant_label,
            max_label_values: settings.max_label_values as usize,
            scraped: listener.is_some(),
            collector,
        })
        .map_err(|error| Error::internal("metrics cannot be collected").with_source(error))?;
        telemetry.attach_metrics(metrics_guard);
        if let Some(tls) = tls.clone() {
            observe(&TLS_CERTIFICATE_EXPIRY, move |gauge| {
                #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit exactly")]
                gauge.observe(tls.expires_at().timestamp() as f64, &[]);
            });
        }
        let (Some((listener, address)), Some(exporter)) = (listener, exporter) else { return Ok(None) };
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(exporter.serve(listener, tls, stop.clone()));
        Ok(Some(Self { address, stop, tasks }))
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        // Give a running scrape a short time to finish.
        drop(tokio::time::timeout(SHUTDOWN_TIMEOUT, self.tasks.wait()).await);
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error| {
        Error::unavailable(format!("cannot listen on {address}"))
            .at("telemetry.metrics_listen")
            .with_source(error)
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
