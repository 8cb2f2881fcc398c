//! Grants sent over the network: they may be late or lost, and the reconciler signals their owners.
//!
//! The store grants a session again to the worker that owns it. So a worker that is signalled to reclaim a session,
//! and does not have it active, claims it. An earlier grant that arrives afterwards must not be executed: its run may
//! have ended already, or another worker may own the session by now.

use crate::{
    scope::{DirectGrants, Mutation, Scope},
    state::{Age, InFlightGrant, Incarnation, IncarnationId, Origin, Phase, SessionIndex, State},
    store, worker,
};

/// Sends the grant of a submit. A grant to an incarnation that is gone is dropped.
pub(crate) fn send(state: &mut State, session: SessionIndex, id: IncarnationId, phase: Phase) {
    if worker::is_alive(state, id) {
        let in_flight_grants = &mut state.incarnation_mut(id).in_flight_grants;
        in_flight_grants.push(InFlightGrant { session, phase, age: Age::Fresh });
        in_flight_grants.sort_unstable();
    }
}

/// A grant for an active session waits until the session is released, as if it arrived later.
pub(crate) fn can_deliver(scope: &Scope, incarnation: &Incarnation, in_flight_grant: &InFlightGrant) -> bool {
    !is_executed(scope, in_flight_grant)
        || !worker::can_accept(scope, incarnation)
        || !worker::is_active(incarnation, in_flight_grant.session)
}

/// Executes a grant, or gives it back if there is no free slot. An old grant is claimed again instead: its worker may
/// have been signalled to reclaim it, and may have executed it.
pub(crate) fn deliver(scope: &Scope, state: &mut State, id: IncarnationId, index: usize) {
    let in_flight_grant = state.incarnation_mut(id).in_flight_grants.remove(index);
    let InFlightGrant { session, phase, .. } = in_flight_grant;
    match (is_executed(scope, &in_flight_grant), phase.grant()) {
        (true, _) if worker::can_accept(scope, state.incarnation(id)) => {
            worker::start_task(state, session, id, Origin::Grant, phase);
        }
        (true, Some(grant)) => {
            worker::start_task(state, session, id, Origin::Declined, Phase::Release(grant))
        }
        _ => reclaim(scope, state, id, session),
    }
}

pub(crate) fn receive_reclaim(scope: &Scope, state: &mut State, id: IncarnationId, session: SessionIndex) {
    state.incarnation_mut(id).pending_reclaims.retain(|pending_reclaims| *pending_reclaims != session);
    reclaim(scope, state, id, session);
}

/// Claims a session that the worker is said to own. A draining worker does so too, and hands over.
fn reclaim(scope: &Scope, state: &mut State, id: IncarnationId, session: SessionIndex) {
    let incarnation = state.incarnation(id);
    if worker::is_active(incarnation, session) {
        return;
    }
    let origin =
        if worker::has_free_slot(scope, incarnation) { Origin::Grant } else { Origin::ReclaimWithoutSlot };
    worker::start_task(state, session, id, origin, Phase::Claim);
}

/// Whether the worker executes the grant without asking the store.
fn is_executed(scope: &Scope, in_flight_grant: &InFlightGrant) -> bool {
    in_flight_grant.age == Age::Fresh || scope.broken(Mutation::ExecuteLateGrants)
}

/// A worker whose claim was granted drops earlier grants of the session. It remembers the claim for as long as an
/// earlier grant would be executed.
pub(crate) fn drop_superseded(scope: &Scope, state: &mut State, id: IncarnationId, session: SessionIndex) {
    if !scope.broken(Mutation::ExecuteSupersededGrants) {
        let superseded = |in_flight_grant: &InFlightGrant| {
            in_flight_grant.session == session && in_flight_grant.age == Age::Fresh
        };
        state.incarnation_mut(id).in_flight_grants.retain(|in_flight_grant| !superseded(in_flight_grant));
    }
}

/// The owner of a session, if it can be signalled: it is alive, no signal is pending, and no fresh grant is in
/// flight.
pub(crate) fn owner_to_signal(scope: &Scope, state: &State, session: SessionIndex) -> Option<IncarnationId> {
    let disabled = scope.direct_grants != DirectGrants::OverNetwork || scope.broken(Mutation::NoRedelivery);
    let fresh = |in_flight_grant: &InFlightGrant| {
        in_flight_grant.session == session && in_flight_grant.age == Age::Fresh
    };
    let pending_reclaims =
        |owner: IncarnationId| state.incarnation(owner).pending_reclaims.contains(&session);
    let owner = store::live_owner(state, session).filter(|owner| worker::is_alive(state, *owner))?;
    let is_new = !state.incarnations().flat_map(|incarnation| &incarnation.in_flight_grants).any(fresh)
        && !pending_reclaims(owner);
    (!disabled && is_new).then_some(owner)
}

pub(crate) fn signal_reclaim(state: &mut State, session: SessionIndex) {
    if let Some(owner) = state.session(session).row.owner {
        let pending_reclaims = &mut state.incarnation_mut(owner).pending_reclaims;
        pending_reclaims.push(session);
        pending_reclaims.sort_unstable();
    }
}

/// Everything in transit to an incarnation is lost.
pub(crate) fn forget(incarnation: &mut Incarnation) {
    incarnation.in_flight_grants.clear();
    incarnation.pending_reclaims.clear();
}
