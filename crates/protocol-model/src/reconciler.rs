//! The reconciler: reclaims sessions from lost workers, signals live owners of lost grants, publishes the tokens of
//! runnable sessions, and replaces orphaned tokens.

use crate::{
    action::ReconcilerStep,
    broker::{self, Published},
    in_flight_grant,
    scope::{Mutation, Scope},
    state::{Reconciler, SessionIndex, State, Token},
    store, worker,
};

/// What the reconciler could do next, except no-ops.
pub(crate) fn steps(scope: &Scope, state: &State) -> Vec<ReconcilerStep> {
    if scope.broken(Mutation::NoSweep) {
        return Vec::new();
    }
    let lost = sessions(state).filter(|session| store::is_lost(state, *session));
    let lost_grants = sessions(state).filter(|session| {
        let owner = in_flight_grant::owner_to_signal(scope, state, *session);
        owner.is_some_and(|owner| !worker::is_active(state.incarnation(owner), *session))
    });
    lost.map(ReconcilerStep::ReclaimSessions)
        .chain(sweep(state))
        .chain(lost_grants.map(ReconcilerStep::SignalReclaim))
        .collect()
}

/// The next step of the sweep through the runnable sessions.
fn sweep(state: &State) -> Option<ReconcilerStep> {
    let reconciler = &state.reconciler;
    let idle = reconciler.suspects.is_empty() && runnable(state).next().is_none();
    match (reconciler.todo.is_empty(), reconciler.replacing) {
        (true, _) => (!idle).then_some(ReconcilerStep::Begin),
        (false, false) => Some(ReconcilerStep::Publish),
        (false, true) => Some(ReconcilerStep::Discard),
    }
}

pub(crate) fn step(scope: &Scope, state: &mut State, reconciler_step: ReconcilerStep) {
    match reconciler_step {
        ReconcilerStep::ReclaimSessions(session) => {
            store::reclaim_session(state, session);
            state.session_mut(session).wakes += 1;
        }
        ReconcilerStep::SignalReclaim(session) => in_flight_grant::signal_reclaim(state, session),
        ReconcilerStep::Begin => begin(scope, state),
        ReconcilerStep::Publish => publish(state),
        ReconcilerStep::Discard => {
            let session = state.reconciler.todo[0];
            broker::remove(state, session);
            // The next step publishes again; a token that comes in between is not removed.
            state.reconciler.replacing = false;
            state.reconciler.suspected.retain(|suspect| *suspect != session);
        }
    }
}

fn begin(scope: &Scope, state: &mut State) {
    let orphans = state.sessions.iter().any(|session| session.token == Token::Orphan);
    state.reconciler = Reconciler {
        todo: runnable(state).collect(),
        healing: orphans && !scope.broken(Mutation::NoOrphanRepair),
        replacing: false,
        suspected: std::mem::take(&mut state.reconciler.suspects),
        suspects: Vec::new(),
    };
    tidy(&mut state.reconciler);
}

/// A session whose token existed in two consecutive rounds, with orphans in both, has an orphan.
fn publish(state: &mut State) {
    let session = state.reconciler.todo[0];
    let published = broker::publish(state, session);
    let reconciler = &mut state.reconciler;
    if published == Published::AlreadyScheduled && reconciler.healing {
        if reconciler.suspected.contains(&session) {
            reconciler.replacing = true;
            return;
        }
        reconciler.suspects.push(session);
    }
    reconciler.todo.remove(0);
    tidy(reconciler);
}

/// Aborts the rest of the round.
pub(crate) fn give_up(state: &mut State) {
    state.reconciler.todo.clear();
    state.reconciler.replacing = false;
    tidy(&mut state.reconciler);
}

/// Clears what only a round in progress needs.
fn tidy(reconciler: &mut Reconciler) {
    if reconciler.todo.is_empty() {
        reconciler.healing = false;
        reconciler.suspected.clear();
    }
}

fn runnable(state: &State) -> impl Iterator<Item = SessionIndex> {
    sessions(state).filter(|session| store::is_runnable(state, *session))
}

fn sessions(state: &State) -> impl Iterator<Item = SessionIndex> {
    (0..).zip(&state.sessions).map(|(index, _)| index)
}
