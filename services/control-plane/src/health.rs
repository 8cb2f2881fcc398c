//! The health that load balancers and Kubernetes ask for.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::Result;
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

const CHECK_EVERY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(3);

/// How a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The store answers.
    pub store: bool,
    /// The transport answers.
    pub transport: bool,
    /// The server was told to stop.
    pub draining: bool,
}

impl Health {
    fn serving(self) -> ServingStatus {
        let well = self.store && self.transport && !self.draining;
        if well { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

async fn answers(name: &str, ping: impl Future<Output = Result<()>>) -> bool {
    match timeout(PATIENCE, ping).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "the {name} does not answer");
            false
        }
        Err(_) => {
            tracing::warn!("the {name} does not answer within {PATIENCE:?}");
            false
        }
    }
}

/// Tells over gRPC and HTTP whether the store and the transport answer, until `stop` and that it has come.
pub async fn report_health(
    reporter: HealthReporter,
    health: watch::Sender<Health>,
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) {
    loop {
        let (store, transport) =
            tokio::join!(answers("store", store.ping()), answers("transport", transport.ping()));
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
