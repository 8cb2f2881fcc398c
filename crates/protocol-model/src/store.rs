//! The store: each function is one transaction.

use crate::{
    row::ClaimOutcome,
    scope::{Call, Mutation, Scope},
    state::{
        CallRecord, Grant, IncarnationId, Lease, Phase, Run, RunIndex, Session, SessionIndex, State, Step,
    },
};

/// Response to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimResponse {
    /// With the first phase.
    Granted(Phase),
    /// A live worker owns the session, or the claiming one has no lease.
    Refused,
    NothingToDo,
    /// It was recorded as a lost worker's. Now it has no owner: claim again.
    Reclaimed,
}

/// Response to the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndResponse {
    /// The session has another run, to be executed under the same grant.
    Next(Phase),
    Released,
    Refused,
}

/// Accepts a run, and records that the control plane owes a publish if the session has no owner.
pub(crate) fn submit(scope: &Scope, state: &mut State, session: SessionIndex) {
    let session = state.session_mut(session);
    session.runs.push(Run { calls: vec![CallRecord::default(); scope.calls.len()], ends: 0 });
    if session.row.admit() {
        session.wakes += 1;
    }
}

/// A submit whose transaction also grants the session to a worker: no publish is owed. `None` if that is not
/// possible.
pub(crate) fn submit_to(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
) -> Option<Phase> {
    submit(scope, state, session);
    let ClaimResponse::Granted(phase) = claim(scope, state, session, incarnation) else { return None };
    state.session_mut(session).wakes -= 1;
    Some(phase)
}

/// Claims a session.
pub(crate) fn claim(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
) -> ClaimResponse {
    if state.incarnation(incarnation).lease != Lease::Held {
        return ClaimResponse::Refused;
    }
    let Some(run) = head_run(scope, state.session(session)) else {
        return ClaimResponse::NothingToDo;
    };
    let owner = state.session(session).row.owner;
    let overruled =
        scope.broken(Mutation::ClaimOverLiveLease) && owner.is_some_and(|owner| owner != incarnation);
    if overruled || is_lost(state, session) {
        reclaim_session(state, session);
        return ClaimResponse::Reclaimed;
    }
    let lease = owner.map(|owner| state.incarnation(owner).lease);
    let row = &mut state.session_mut(session).row;
    match row.claim(incarnation, lease) {
        ClaimOutcome::Granted { epoch } => {
            row.current = Some(run);
            ClaimResponse::Granted(next_call(scope, state, session, Grant { run, epoch }))
        }
        ClaimOutcome::Refused => ClaimResponse::Refused,
        ClaimOutcome::NothingToDo => ClaimResponse::NothingToDo,
    }
}

/// Whether the session has work, and is owned by a worker whose lease expired.
pub(crate) fn is_lost(state: &State, session: SessionIndex) -> bool {
    let row = &state.session(session).row;
    row.pending > 0 && row.owner.is_some_and(|owner| state.incarnation(owner).lease != Lease::Held)
}

/// Ends the ownership of a lost worker, and writes its lease off: it cannot be renewed any more.
pub(crate) fn reclaim_session(state: &mut State, session: SessionIndex) {
    if let Some(owner) = state.session(session).row.owner {
        let lease = &mut state.incarnation_mut(owner).lease;
        if *lease == Lease::Ended {
            *lease = Lease::WrittenOff;
        }
    }
    state.session_mut(session).row.release();
}

/// Records the progress of a call and returns the next phase. `None` if the write was rejected.
pub(crate) fn commit_step(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
    grant: Grant,
    (call, step): (u8, Step),
) -> Option<Phase> {
    accept(scope, state, session, incarnation, grant).then(|| {
        record(state, session, grant)[usize::from(call)].step = step;
        match step {
            Step::Announced => Phase::Start(grant, call),
            Step::New | Step::Done => next_call(scope, state, session, grant),
        }
    })
}

/// Ends a run with its remaining calls. Returns the owner's next run, or releases the session.
pub(crate) fn commit_end(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
    grant: Grant,
    give_up: bool,
) -> EndResponse {
    if !accept(scope, state, session, incarnation, grant) {
        return EndResponse::Refused;
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
            EndResponse::Next(next_call(scope, state, session, Grant { run, ..grant }))
        }
        _ => {
            stored.row.release();
            EndResponse::Released
        }
    }
}

/// Releases the session in the middle of a run, or at any other time.
pub(crate) fn release(
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
    grant: Grant,
) -> bool {
    let row = &mut state.session_mut(session).row;
    let owns = row.verify(incarnation, grant);
    if owns {
        row.release();
    }
    owns
}

/// Whether the session has a run that could start, and no live owner.
pub(crate) fn is_runnable(state: &State, session: SessionIndex) -> bool {
    state.session(session).row.pending > 0 && live_owner(state, session).is_none()
}

/// The owner of the session, if its lease is alive.
pub(crate) fn live_owner(state: &State, session: SessionIndex) -> Option<IncarnationId> {
    state.session(session).row.owner.filter(|owner| state.incarnation(*owner).lease == Lease::Held)
}

/// Decides on a write of a worker.
fn accept(
    scope: &Scope,
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
    grant: Grant,
) -> bool {
    let row = &state.session(session).row;
    let owns = row.verify(incarnation, grant);
    let is_current = row.current == Some(grant.run);
    let accepted = match scope.mutation {
        Some(Mutation::NoEpochCheck) => is_current,
        Some(Mutation::UncheckedCommit) => true,
        _ => owns && is_current,
    };
    let newest = row.owner == Some(incarnation) && row.epoch == grant.epoch;
    state.violations.stale_commit |= accepted && !newest;
    accepted
}

/// The run that a session's owner executes next.
fn head_run(scope: &Scope, session: &Session) -> Option<RunIndex> {
    let waiting = (0..).zip(&session.runs).filter(|(_, run)| run.ends == 0).map(|(index, _)| index);
    if scope.broken(Mutation::NewestFirst) { waiting.max() } else { waiting.min() }
}

/// The first call without an outcome, and how a new owner handles it.
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
