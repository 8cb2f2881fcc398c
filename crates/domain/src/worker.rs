//! Workers as the store and the fleet's users see them.

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    ids::{PlaneId, RunId, SessionId, TenantId, WorkerId},
    pool::Pool,
};

/// What a worker says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub id: WorkerId,
    pub host: String,
    pub version: String,
    pub pool: Pool,
    pub slots: u32,
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

/// Whether a worker takes sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Active,
    /// Finishes what it has and takes nothing new.
    Draining,
    /// Its lease ended: what it owned can be taken over.
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

/// A message to one worker. Signals may be lost: what matters stands in the store too, where the worker looks with
/// every heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "signal", rename_all = "snake_case")]
pub enum Signal {
    Cancel {
        session: SessionId,
        run: RunId,
    },
    Drain,
    /// Tell again what is being said in the session: someone began to listen in the middle. Stands in no store: it is asked again.
    TellAgain {
        session: SessionId,
    },
    /// The store says that the session is yours: take it into hand, unless you have it. A grant may have been lost on its way. Asked again
    /// as long as it seems so.
    Yours {
        tenant: TenantId,
        session: SessionId,
    },
}

/// Room that a worker has, as it tells every control plane: the commit that accepts the first run of a session may grant it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub worker: WorkerId,
    pub pool: Pool,
    /// Sessions that it takes from each control plane, beyond those that it has received.
    pub room: u32,
    /// The worker's own clock, in microseconds. Whoever grants gives it back, so that the worker knows how old a grant is at most.
    pub stamp: u64,
    /// How many grants of each control plane it has received.
    pub received: Vec<(PlaneId, u64)>,
}
