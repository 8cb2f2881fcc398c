//! The message that carries grants from a control plane to a worker of another process.

use std::time::Duration;

use remuda_domain::ControlPlaneId;
use serde::{Deserialize, Serialize};

use crate::Grant;

/// The oldest grant that a worker executes as received. It claims the session of an older grant instead, because it may
/// have claimed that session in the meantime (after a `ReclaimSession` signal) and the grant would then carry an
/// outdated epoch.
pub const MAX_GRANT_AGE: Duration = Duration::from_secs(5);

/// What a control plane sends to a worker that offered free slots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrantBatch {
    pub from: ControlPlaneId,
    /// The stamp of the worker's offer that this batch answers, see
    /// [`SlotOffer::stamp`](remuda_domain::worker::SlotOffer).
    pub stamp: u64,
    /// Total number of grants that this sender has sent to this worker, including these. If the worker received fewer,
    /// some were lost.
    pub sent: u64,
    pub grants: Vec<Grant>,
}
