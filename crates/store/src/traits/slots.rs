//! Free slots of workers, which the store asks for when it accepts runs.

use std::fmt;

use remuda_domain::{Pool, SessionId, WorkerId};

use crate::Grant;

/// Hands out free slots of workers that accept grants without a claim.
///
/// A submit of a session's first run reserves a slot. If the session has no owner, the same transaction grants it to
/// that slot's worker, and no token is needed. [`Fleet::lost_grants`](crate::Fleet::lost_grants) finds grants that did
/// not arrive.
pub trait SlotProvider: fmt::Debug + Send + Sync {
    /// Reserves a free slot of some worker of the pool for this session. `None` if there is none, or if that worker is
    /// already active on the session. Must not block: on SQLite it is called inside a transaction.
    fn reserve_slot(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn SlotReservation>>;
}

/// A slot reserved for a session. Dropping it frees the slot.
pub trait SlotReservation: Send {
    /// The worker that the slot belongs to.
    fn worker(&self) -> WorkerId;
    /// Hands over the grant after its transaction was committed. Must not block.
    fn assign(self: Box<Self>, grant: Box<Grant>);
}

/// No slots: every run waits for a worker that takes a token.
#[derive(Clone, Copy, Debug)]
pub struct NoSlots;

impl SlotProvider for NoSlots {
    fn reserve_slot(&self, _: &Pool, _: SessionId) -> Option<Box<dyn SlotReservation>> {
        None
    }
}
