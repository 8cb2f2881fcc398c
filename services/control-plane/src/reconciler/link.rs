//! Notices that the transport was away: what was published meanwhile may be lost, and its state may be too.

use std::{sync::Arc, time::Duration};

use remuda_domain::{SessionId, TenantId};
use remuda_transport::Transport;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;

/// How often a transport that is away is tried.
const RETRY: Duration = Duration::from_millis(250);

/// Rings `alarm` whenever the transport answers again after it was away, until `stop`. A live subscription ends with its
/// connection, so one to a session that does not exist tells.
pub(super) async fn watch(transport: Arc<dyn Transport>, alarm: Alarm, stop: CancellationToken) {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let follow = async {
        let mut was_away = false;
        loop {
            if let Ok(mut live) = transport.subscribe_events(tenant, session).await {
                if was_away {
                    alarm.ring();
                }
                while live.next().await.is_some() {}
            }
            was_away = true;
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}
