//! The reconciler: takes sessions back from lost workers, tells live ones what is theirs, publishes the tokens of runnable
//! sessions, and replaces the orphans among them.

use crate::{
    action::Round,
    broker::{self, Published},
    parcel,
    scope::{Mutation, Scope},
    state::{Reconciler, SessionIndex, State, Token},
    store, worker,
};

/// What the reconciler could do next, except what would change nothing.
pub(crate) fn steps(scope: &Scope, state: &State) -> Vec<Round> {
    if scope.broken(Mutation::NoSweep) {
        return Vec::new();
    }
    let lost = sessions(state).filter(|session| store::is_lost(state, *session));
    let unheld = sessions(state).filter(|session| {
        let owner = parcel::owner_to_tell(scope, state, *session);
        owner.is_some_and(|owner| !worker::is_in_hand(state.life(owner), *session))
    });
    lost.map(Round::TakeBack).chain(sweep(state)).chain(unheld.map(Round::Tell)).collect()
}

/// The next step through the runnable sessions.
fn sweep(state: &State) -> Option<Round> {
    let reconciler = &state.reconciler;
    let idle = reconciler.suspects.is_empty() && runnable(state).next().is_none();
    match (reconciler.todo.is_empty(), reconciler.replacing) {
        (true, _) => (!idle).then_some(Round::Begin),
        (false, false) => Some(Round::Publish),
        (false, true) => Some(Round::Discard),
    }
}

pub(crate) fn step(scope: &Scope, state: &mut State, round: Round) {
    match round {
        Round::TakeBack(session) => {
            store::take_back(state, session);
            state.session_mut(session).wakes += 1;
        }
        Round::Tell(session) => parcel::tell(state, session),
        Round::Begin => begin(scope, state),
        Round::Publish => publish(state),
        Round::Discard => {
            let session = state.reconciler.todo[0];
            broker::remove(state, session);
            // Published anew; a token that comes in between is not removed again.
            state.reconciler.replacing = false;
            state.reconciler.suspected.retain(|suspect| *suspect != session);
        }
    }
}

fn begin(scope: &Scope, state: &mut State) {
    let orphans = state.sessions.iter().any(|session| session.token == Token::Orphan);
    state.reconciler = Reconciler {
        todo: runnable(state).collect(),
        healing: orphans && !scope.broken(Mutation::NoHealer),
        replacing: false,
        suspected: std::mem::take(&mut state.reconciler.suspects),
        suspects: Vec::new(),
    };
    tidy(&mut state.reconciler);
}

/// A session whose token was there in two rounds in a row, with orphans in both, has an orphan.
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

/// The rest of the round does not take place.
pub(crate) fn give_up(state: &mut State) {
    state.reconciler.todo.clear();
    state.reconciler.replacing = false;
    tidy(&mut state.reconciler);
}

/// What only a round in progress needs is forgotten with its end.
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
