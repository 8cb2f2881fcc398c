//! Workers as seen by the store and by operators.

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    bus::BusSecret,
    ids::{ControlPlaneId, RunId, SessionId, TenantId, WorkerId},
    pool::Pool,
};

/// What a worker reports when it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub id: WorkerId,
    pub host: String,
    pub version: String,
    pub pool: Pool,
    pub slots: u32,
    /// The key with which it signs messages as long as its lease lives. `None` in lists.
    pub bus_secret: Option<BusSecret>,
}

/// A worker as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub registration: Registration,
    pub state: WorkerState,
    /// Sessions it owned at its last heartbeat.
    pub busy: u32,
    pub started_at: Timestamp,
    pub lease_until: Timestamp,
}

/// Whether a worker accepts sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Active,
    /// Finishes its work and accepts nothing new.
    Draining,
    /// Its lease has expired: its sessions can be taken over.
    Gone,
}

impl WorkerState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }
}

/// A message to one worker. Signals may be lost: what matters is also in the store, and the worker gets it with every
/// heartbeat response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "signal", rename_all = "snake_case")]
pub enum Signal {
    Cancel {
        session: SessionId,
        run: RunId,
    },
    Drain,
    /// Publish the text of the message under way again from its start: a reader joined in the middle. Not in the
    /// store; the reader repeats the request if the signal is lost.
    #[serde(rename = "tell_again")]
    ResendDeltas {
        session: SessionId,
    },
    /// The store records this worker as the owner of the session: claim it unless it is active here. Its grant may
    /// have been lost. Repeated while the worker's heartbeats do not name the session's run.
    #[serde(rename = "yours")]
    ReclaimSession {
        tenant: TenantId,
        session: SessionId,
    },
}

/// Free slots of a worker, as announced to every control plane: the commit that accepts the first run of a session
/// may grant the session to this worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOffer {
    pub worker: WorkerId,
    pub pool: Pool,
    /// How many sessions it accepts from each control plane, beyond the grants in `received`.
    #[serde(rename = "room")]
    pub slots: u32,
    /// The worker's clock in microseconds. Grants return it, so that the worker knows their maximum age.
    pub stamp: u64,
    /// How many grants of each control plane it has received.
    pub received: Vec<(ControlPlaneId, u64)>,
    /// The newest version of grants that it reads. Version 0.1.0 says nothing and reads only JSON; such a worker gets
    /// tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub grant_version: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(version: &u32) -> bool {
    *version == 0
}
