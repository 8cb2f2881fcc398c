//! The health that load balancers and Kubernetes ask for.

use std::{sync::Arc, time::Duration};

use remuda_store::Store;
use remuda_transport::Transport;
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

const CHECK_EVERY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(3);

/// Reports `SERVING` while the store and the transport answer, `NOT_SERVING` when one does not and after `stop`.
pub async fn report_health(
    reporter: HealthReporter,
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) {
    let mut last = None;
    loop {
        let both = async { store.ping().await.and(transport.ping().await) };
        let well = match tokio::time::timeout(PATIENCE, both).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(error = error.chain(), "a dependency does not answer");
                false
            }
            Err(_) => {
                tracing::warn!("a dependency does not answer within {PATIENCE:?}");
                false
            }
        };
        if last != Some(well) {
            let status = if well { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status("", status).await;
            last = Some(well);
        }
        tokio::select! {
            () = stop.cancelled() => {
                reporter.set_service_status("", ServingStatus::NotServing).await;
                return;
            }
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}
