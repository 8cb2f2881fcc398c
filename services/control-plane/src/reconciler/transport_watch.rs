//! Detects that the transport was down: messages published meanwhile may be lost, and so may its state.

use std::{sync::Arc, time::Duration};

use remuda_domain::{SessionId, TenantId};
use remuda_transport::Transport;
use tokio_util::sync::CancellationToken;

use crate::lost_wakeups::LostWakeups;

/// Pause before an unreachable transport is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// Reports lost wake-ups whenever the transport is back after an outage, until `stop`. A live subscription ends with its
/// connection, so a subscription to a session that does not exist detects outages.
pub(super) async fn watch(transport: Arc<dyn Transport>, lost_wakeups: LostWakeups, stop: CancellationToken) {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let follow = async {
        let mut was_down = false;
        loop {
            if let Ok(mut live) = transport.subscribe_events(tenant, session).await {
                if was_down {
                    lost_wakeups.report();
                }
                while live.next().await.is_some() {}
            }
            was_down = true;
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}
