//! Decides how an accepted run gets a worker: by a grant to a free slot, or by a token.
//!
//! A run of a session with an owner needs neither. [`place`] is the only function that grants a session to a free slot,
//! and [`session_change`] the only one that asks for a token. Both decide about a locked head, or about one whose
//! version is checked when it is written.
//!
//! An order between tenants belongs here: a session that is not its tenant's turn gets neither a grant nor a token.

use remuda_domain::{
    Appended, Run, Timestamp, WorkerId,
    error::Result,
    session::{ClaimDecision, Owner},
};

use super::claim::grant_run;
use crate::{
    Grant, SessionChange, SlotProvider, SlotReservation,
    rows::{LockedHead, SessionSettings},
};

/// A reserved slot and its grant.
pub(super) struct SlotGrant {
    reservation: Box<dyn SlotReservation>,
    grant: Box<Grant>,
}

impl SlotGrant {
    /// Hands over the grant. Call it only after the commit: the worker starts to execute.
    pub(super) fn deliver(self) {
        self.reservation.assign(self.grant);
    }
}

/// Grants the session of an accepted run to a worker with a free slot. `None` if the run has to wait for others, if a
/// budget covers it, or if no worker has a free slot. `is_alive` tells whether the worker's lease is live, unless the
/// write checks that.
pub(super) fn place(
    slots: &dyn SlotProvider,
    run: &Run,
    locked: &mut LockedHead,
    settings: &SessionSettings,
    at: Timestamp,
    is_alive: impl FnOnce(WorkerId) -> Result<bool>,
) -> Result<Option<SlotGrant>> {
    if !locked.head.is_first(run.seq) || run.budget.is_some() {
        return Ok(None);
    }
    if !can_be_granted(locked, settings) {
        return Ok(None);
    }
    let Some(reservation) = slots.reserve_slot(&locked.head.pool, run.session) else { return Ok(None) };
    let worker = reservation.worker();
    if !is_alive(worker)? {
        return Ok(None);
    }
    let grant = grant_to(worker, run.clone(), locked, settings, at)?;
    Ok(grant.map(|grant| SlotGrant { reservation, grant }))
}

/// Whether a worker can get the session without more rows than its head: it has no owner and no budget.
pub(super) fn can_be_granted(locked: &LockedHead, settings: &SessionSettings) -> bool {
    let is_free = locked.head.owner == Owner::Nobody && locked.head.current.is_none();
    is_free && settings.session_budget.is_none()
}

/// Grants a session that [can be granted](can_be_granted) to a worker with a live lease.
pub(super) fn grant_to(
    worker: WorkerId,
    run: Run,
    locked: &mut LockedHead,
    settings: &SessionSettings,
    at: Timestamp,
) -> Result<Option<Box<Grant>>> {
    match locked.head.claim(worker) {
        ClaimDecision::Granted { fence } => {
            locked.granted_to = Some(worker);
            Ok(Some(Box::new(grant_run(locked, fence, run, settings.clone(), at)?)))
        }
        ClaimDecision::Refused { .. } | ClaimDecision::NothingToDo => Ok(None),
    }
}

/// The change of a session after its owner or queue changed. It asks for a token if the session has runs and no owner.
pub(super) fn session_change(locked: &LockedHead, events: Appended) -> SessionChange {
    let head = &locked.head;
    SessionChange {
        tenant: head.tenant,
        session: head.session,
        pool: head.pool.clone(),
        // A parked head run needs no worker; a worker woken for it finds nothing to do.
        wake: head.owner == Owner::Nobody && head.pending > 0,
        events,
        lost: None,
    }
}

/// The change of a session in which no run became runnable.
pub(super) fn events_only(locked: &LockedHead, events: Appended) -> SessionChange {
    SessionChange { wake: false, ..session_change(locked, events) }
}
