//! Grants on their way to a worker of another process.

use std::time::Duration;

use remuda_domain::PlaneId;
use serde::{Deserialize, Serialize};

use crate::Grant;

/// A grant that may be older is not executed as it is: whoever gets it asks the store once more. So nobody who was told in the meantime that a session
/// is his, and claimed it, meets with an older grant of it.
pub const GRANT_AGE: Duration = Duration::from_secs(5);

/// What a control plane sends to a worker that has room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parcel {
    pub from: PlaneId,
    /// Of the worker's offer that it answers, see [`Offer::stamp`](remuda_domain::worker::Offer).
    pub stamp: u64,
    /// How many grants this sender has sent to this worker, these included. More than were received were lost.
    pub sent: u64,
    pub grants: Vec<Grant>,
}
