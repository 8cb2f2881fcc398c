//! Health checks for load balancers and Kubernetes.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, error::Result};
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

const CHECK_EVERY: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// The state of something that a server depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependency {
    Up,
    /// It does not respond.
    #[default]
    Down,
    /// It responds, but has no room on its disk.
    Full,
}

/// The health of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub store: Dependency,
    pub transport: Dependency,
    /// The server is shutting down.
    pub draining: bool,
}

impl Health {
    fn serving(self) -> ServingStatus {
        if self.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    /// Whether the server can serve requests.
    #[must_use]
    pub fn is_ready(self) -> bool {
        !self.draining && self.store == Dependency::Up && self.transport == Dependency::Up
    }
}

/// Checks a dependency. Logs changes from the state `before`.
async fn check(name: &str, before: Dependency, ping: impl Future<Output = Result<()>>) -> Dependency {
    let (now, problem) = match timeout(PING_TIMEOUT, ping).await {
        Ok(Ok(())) => (Dependency::Up, String::new()),
        Ok(Err(error)) if error.code() == Code::StorageFull => (Dependency::Full, error.chain()),
        Ok(Err(error)) => (Dependency::Down, error.chain()),
        Err(_) => (Dependency::Down, format!("no response within {PING_TIMEOUT:?}")),
    };
    match now {
        _ if now == before => {}
        Dependency::Up => tracing::info!("the {name} responds"),
        Dependency::Down => tracing::warn!(error = problem, "the {name} does not respond"),
        Dependency::Full => tracing::warn!(error = problem, "the {name} has no room on its disk"),
    }
    now
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
        let before = *health.borrow();
        let (store, transport) = tokio::join!(
            check("store", before.store, store.ping()),
            check("transport", before.transport, transport.ping())
        );
        let now = Health { store, transport, draining: stop.is_cancelled() };
        if before != now {
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
