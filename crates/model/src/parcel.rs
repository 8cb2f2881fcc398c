//! Grants over a wire: they take their time, may be late or lost, and their owners are told.
//!
//! The store grants a session again to the worker that owns it. So whoever hears that a session is its own, and does not have it in
//! hand, claims it. What it was granted before must not be executed then, should it come after all: it may be done already, or
//! be somebody else's by now.

use crate::{
    scope::{Mutation, Scope, StandBy},
    state::{Age, Life, LifeId, Origin, Parcel, Phase, SessionIndex, State},
    store, worker,
};

/// Sends what was granted with a submit. To one that is gone already it is not worth the way.
pub(crate) fn send(state: &mut State, session: SessionIndex, id: LifeId, phase: Phase) {
    if worker::is_alive(state, id) {
        let parcels = &mut state.life_mut(id).parcels;
        parcels.push(Parcel { session, phase, age: Age::Fresh });
        parcels.sort_unstable();
    }
}

/// What comes for a session in hand waits until that is let go of, which is as if it came later.
pub(crate) fn can_arrive(scope: &Scope, life: &Life, parcel: &Parcel) -> bool {
    !is_executed(scope, parcel) || !worker::has_room(scope, life) || !worker::is_in_hand(life, parcel.session)
}

/// Takes what was granted, or gives it back if there is no room. What is old is claimed anew: its worker may have been told of it,
/// and have done it.
pub(crate) fn arrive(scope: &Scope, state: &mut State, id: LifeId, index: usize) {
    let parcel = state.life_mut(id).parcels.remove(index);
    let Parcel { session, phase, .. } = parcel;
    match (is_executed(scope, &parcel), phase.grant()) {
        (true, _) if worker::has_room(scope, state.life(id)) => {
            worker::take_up(state, session, id, Origin::Grant, phase);
        }
        (true, Some(grant)) => worker::take_up(state, session, id, Origin::Declined, Phase::LetGo(grant)),
        _ => claim_own(scope, state, id, session),
    }
}

pub(crate) fn hear(scope: &Scope, state: &mut State, id: LifeId, session: SessionIndex) {
    state.life_mut(id).told.retain(|told| *told != session);
    claim_own(scope, state, id, session);
}

/// Claims what is said to be the worker's own. One that drains does so, too, and hands over.
fn claim_own(scope: &Scope, state: &mut State, id: LifeId, session: SessionIndex) {
    let life = state.life(id);
    if worker::is_in_hand(life, session) {
        return;
    }
    let origin = if worker::has_slot(scope, life) { Origin::Grant } else { Origin::OwnInExcess };
    worker::take_up(state, session, id, origin, Phase::Claim);
}

/// Whether the worker does what the parcel says, without a word to the store.
fn is_executed(scope: &Scope, parcel: &Parcel) -> bool {
    parcel.age == Age::Fresh || scope.broken(Mutation::TakeLateParcels)
}

/// A worker whose claim was granted knows that whatever it was granted before is worth nothing. It remembers that for as long as
/// such a parcel would be executed.
pub(crate) fn overtake(scope: &Scope, state: &mut State, id: LifeId, session: SessionIndex) {
    if !scope.broken(Mutation::TakeOvertakenParcels) {
        let overtaken = |parcel: &Parcel| parcel.session == session && parcel.age == Age::Fresh;
        state.life_mut(id).parcels.retain(|parcel| !overtaken(parcel));
    }
}

/// The owner of a session who can be told that it is: it lives, is not told already, and was granted nothing lately.
pub(crate) fn owner_to_tell(scope: &Scope, state: &State, session: SessionIndex) -> Option<LifeId> {
    let silent = scope.stand_by != StandBy::OverWire || scope.broken(Mutation::NoTelling);
    let lately = |parcel: &Parcel| parcel.session == session && parcel.age == Age::Fresh;
    let told = |owner: LifeId| state.life(owner).told.contains(&session);
    let owner = store::live_owner(state, session).filter(|owner| worker::is_alive(state, *owner))?;
    let is_new = !state.lives().flat_map(|life| &life.parcels).any(lately) && !told(owner);
    (!silent && is_new).then_some(owner)
}

pub(crate) fn tell(state: &mut State, session: SessionIndex) {
    if let Some(owner) = state.session(session).row.owner {
        let told = &mut state.life_mut(owner).told;
        told.push(session);
        told.sort_unstable();
    }
}

/// Everything that is under way to a life is lost.
pub(crate) fn forget(life: &mut Life) {
    life.parcels.clear();
    life.told.clear();
}
