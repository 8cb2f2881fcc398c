//! Health checks for load balancers and Kubernetes.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::Result;
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

const CHECK_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// The health of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The store responds.
    pub store: bool,
    /// The transport responds.
    pub transport: bool,
    /// The server is shutting down.
    pub draining: bool,
}

impl Health {
    fn serving(self) -> ServingStatus {
        let healthy = self.store && self.transport && !self.draining;
        if healthy { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

async fn responds(name: &str, ping: impl Future<Output = Result<()>>) -> bool {
    match timeout(PING_TIMEOUT, ping).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "the {name} does not respond");
            false
        }
        Err(_) => {
            tracing::warn!("the {name} does not respond within {PING_TIMEOUT:?}");
            false
        }
    }
}

/// Checks the store and the transport and publishes the result to gRPC and HTTP. Ends after it has published `stop`.
pub async fn report_health(
    reporter: HealthReporter,
    health: watch::Sender<Health>,
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) {
    loop {
        let (store, transport) =
            tokio::join!(responds("store", store.ping()), responds("transport", transport.ping()));
        let now = Health { store, transport, draining: stop.is_cancelled() };
        if *health.borrow() != now {
            health.send_replace(now);
        }
        reporter.set_service_status("", now.serving()).await;
        if now.draining {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}
