//! The store: each function is one transaction.

use crate::{
    row::Claimed,
    scope::{Call, Mutation, Scope},
    state::{CallRecord, Grant, Lease, LifeId, Phase, Run, RunIndex, Session, SessionIndex, State, Step},
};

/// What a worker hears of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimAnswer {
    /// With what to do first.
    Granted(Phase),
    /// A live worker owns the session, or the asking one has no lease.
    Refused,
    NothingToDo,
    /// It was still recorded as a lost worker's. Now it is nobody's: ask again.
    TakenBack,
}

/// What a worker hears of the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndAnswer {
    /// The session has another run, which is to be executed under the same grant.
    Next(Phase),
    Released,
    Refused,
}

/// Accepts a run, and notes that the control plane owes a publish if nobody owns the session.
pub(crate) fn submit(scope: &Scope, state: &mut State, session: SessionIndex) {
    let session = state.session_mut(session);
    session.runs.push(Run { calls: vec![CallRecord::default(); scope.calls.len()], ends: 0 });
    if session.row.admit() {
        session.wakes += 1;
    }
}

/// The same, granted at once to a worker that stands by, in the same transaction: no publish is owed. `None` if that cannot be.
pub(crate) fn submit_to(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    life: LifeId,
) -> Option<Phase> {
    submit(scope, state, session);
    let ClaimAnswer::Granted(phase) = claim(scope, state, session, life) else { return None };
    state.session_mut(session).wakes -= 1;
    Some(phase)
}

/// Asks for ownership of a session.
pub(crate) fn claim(scope: &Scope, state: &mut State, session: SessionIndex, life: LifeId) -> ClaimAnswer {
    if state.life(life).lease != Lease::Held {
        return ClaimAnswer::Refused;
    }
    let Some(run) = head_run(scope, state.session(session)) else {
        return ClaimAnswer::NothingToDo;
    };
    let owner = state.session(session).row.owner;
    let overruled = scope.broken(Mutation::ClaimOverLiveLease) && owner.is_some_and(|owner| owner != life);
    if overruled || is_lost(state, session) {
        take_back(state, session);
        return ClaimAnswer::TakenBack;
    }
    let lease = owner.map(|owner| state.life(owner).lease);
    let row = &mut state.session_mut(session).row;
    match row.claim(life, lease) {
        Claimed::Granted { epoch } => {
            row.current = Some(run);
            ClaimAnswer::Granted(next_call(scope, state, session, Grant { run, epoch }))
        }
        Claimed::Refused => ClaimAnswer::Refused,
        Claimed::NothingToDo => ClaimAnswer::NothingToDo,
    }
}

/// Whether the session has work, and is recorded as that of a worker whose lease ended.
pub(crate) fn is_lost(state: &State, session: SessionIndex) -> bool {
    let row = &state.session(session).row;
    row.pending > 0 && row.owner.is_some_and(|owner| state.life(owner).lease != Lease::Held)
}

/// Ends the ownership of a lost worker, and writes it off: from here on it cannot renew.
pub(crate) fn take_back(state: &mut State, session: SessionIndex) {
    if let Some(owner) = state.session(session).row.owner {
        let lease = &mut state.life_mut(owner).lease;
        if *lease == Lease::Ended {
            *lease = Lease::WrittenOff;
        }
    }
    state.session_mut(session).row.release();
}

/// Records the progress of a call, and says what comes next. `None` means that the write was refused.
pub(crate) fn commit_step(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    life: LifeId,
    grant: Grant,
    (call, step): (u8, Step),
) -> Option<Phase> {
    accept(scope, state, session, life, grant).then(|| {
        record(state, session, grant)[usize::from(call)].step = step;
        match step {
            Step::Announced => Phase::Start(grant, call),
            Step::New | Step::Done => next_call(scope, state, session, grant),
        }
    })
}

/// Ends a run with what is left of its calls, and gives its owner the next one, or takes the session from it.
pub(crate) fn commit_end(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    life: LifeId,
    grant: Grant,
    give_up: bool,
) -> EndAnswer {
    if !accept(scope, state, session, life, grant) {
        return EndAnswer::Refused;
    }
    for call in record(state, session, grant) {
        call.step = Step::Done;
    }
    let stored = state.session_mut(session);
    stored.runs[usize::from(grant.run)].ends += 1;
    stored.row.retire(grant.run);
    match head_run(scope, stored) {
        Some(run) if !give_up => {
            stored.row.current = Some(run);
            EndAnswer::Next(next_call(scope, state, session, Grant { run, ..grant }))
        }
        _ => {
            stored.row.release();
            EndAnswer::Released
        }
    }
}

/// Gives ownership up in the middle of a run, or at any other time.
pub(crate) fn release(state: &mut State, session: SessionIndex, life: LifeId, grant: Grant) -> bool {
    let row = &mut state.session_mut(session).row;
    let owns = row.verify(life, grant);
    if owns {
        row.release();
    }
    owns
}

/// Whether the session has a run that could start, and nobody alive who owns it.
pub(crate) fn is_runnable(state: &State, session: SessionIndex) -> bool {
    state.session(session).row.pending > 0 && live_owner(state, session).is_none()
}

/// Who owns the session, if its lease goes on.
pub(crate) fn live_owner(state: &State, session: SessionIndex) -> Option<LifeId> {
    state.session(session).row.owner.filter(|owner| state.life(*owner).lease == Lease::Held)
}

/// Decides about a write of a worker.
fn accept(scope: &Scope, state: &mut State, session: SessionIndex, life: LifeId, grant: Grant) -> bool {
    let row = &state.session(session).row;
    let owns = row.verify(life, grant);
    let is_current = row.current == Some(grant.run);
    let accepted = match scope.mutation {
        Some(Mutation::NoEpochCheck) => is_current,
        Some(Mutation::UncheckedCommit) => true,
        _ => owns && is_current,
    };
    let newest = row.owner == Some(life) && row.epoch == grant.epoch;
    state.evidence.stale_commit |= accepted && !newest;
    accepted
}

/// The run that a session's owner executes next.
fn head_run(scope: &Scope, session: &Session) -> Option<RunIndex> {
    let waiting = (0..).zip(&session.runs).filter(|(_, run)| run.ends == 0).map(|(index, _)| index);
    if scope.broken(Mutation::NewestFirst) { waiting.max() } else { waiting.min() }
}

/// The first call without an outcome, and how a new owner takes it up.
fn next_call(scope: &Scope, state: &State, session: SessionIndex, grant: Grant) -> Phase {
    let calls = &state.session(session).runs[usize::from(grant.run)].calls;
    let next = (0..).zip(calls.iter().zip(&scope.calls)).find(|(_, (record, _))| record.step != Step::Done);
    match next {
        None => Phase::End(grant),
        Some((call, (_, Call::Repeatable))) => Phase::Start(grant, call),
        Some((call, (record, Call::Mutating))) => match record.step {
            Step::Announced => Phase::Interrupt(grant, call),
            Step::New | Step::Done => Phase::Announce(grant, call),
        },
    }
}

fn record(state: &mut State, session: SessionIndex, grant: Grant) -> &mut [CallRecord] {
    &mut state.session_mut(session).runs[usize::from(grant.run)].calls
}
