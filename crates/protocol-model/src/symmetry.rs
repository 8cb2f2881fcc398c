//! Symmetry reduction: one representative for all states that differ only in names.
//!
//! Workers are interchangeable; only the order of epochs matters; an incarnation that can have no more effect might
//! as well not have existed. Reducing these leaves fewer states to explore.

use crate::{
    scope::{DirectGrants, Scope},
    state::{Grant, GuardState, Incarnation, IncarnationId, Lease, State},
};

/// Gives the state its smallest names.
pub(crate) fn reduce(scope: &Scope, mut state: State) -> State {
    let grants_possible = grants_possible(scope, &state);
    forget_incarnations(&mut state, grants_possible);
    forget_leases(&mut state, grants_possible);
    renumber_epochs(&mut state);
    sort_workers(&mut state);
    state
}

/// Whether submits may still grant sessions to past incarnations, which their control plane does not know to be over.
fn grants_possible(scope: &Scope, state: &State) -> bool {
    let submitted = state.sessions.iter().map(|session| session.runs.len());
    scope.direct_grants == DirectGrants::OverNetwork
        && !submitted.eq(scope.runs.iter().map(|runs| usize::from(*runs)))
}

/// Drops past incarnations without tasks that no session names as its owner, and none will.
fn forget_incarnations(state: &mut State, grants_possible: bool) {
    for worker in 0..state.workers.len() {
        let mut incarnation = 0;
        while incarnation + 1 < state.workers[worker].incarnations.len() {
            let owner = |worker: usize, incarnation: usize| {
                Some(IncarnationId { worker: byte(worker), incarnation: byte(incarnation) })
            };
            let past = &state.workers[worker].incarnations[incarnation];
            let named = state.sessions.iter().any(|session| session.row.owner == owner(worker, incarnation));
            if named || !is_over(past) || (grants_possible && past.lease != Lease::WrittenOff) {
                incarnation += 1;
                continue;
            }
            state.workers[worker].incarnations.remove(incarnation);
            for owner in state.sessions.iter_mut().filter_map(|session| session.row.owner.as_mut()) {
                if usize::from(owner.worker) == worker && usize::from(owner.incarnation) > incarnation {
                    owner.incarnation -= 1;
                }
            }
        }
    }
}

/// Whether a past incarnation can neither act nor be acted upon. Its lease only matters to its sessions.
fn is_over(incarnation: &Incarnation) -> bool {
    incarnation.tasks.is_empty() && incarnation.tools.is_empty()
}

/// The lease of an incarnation that can neither claim nor start anything only matters to the sessions that it owns or
/// may be granted.
fn forget_leases(state: &mut State, grants_possible: bool) {
    let owners: Vec<IncarnationId> = state.sessions.iter().filter_map(|session| session.row.owner).collect();
    for (place, worker) in (0..).zip(&mut state.workers) {
        let past = worker.incarnations.len() - usize::from(!worker.down);
        for (incarnation, it) in (0..).zip(&mut worker.incarnations[..past]) {
            let owns = owners.contains(&IncarnationId { worker: place, incarnation });
            if it.tools.is_empty() && !owns && !(grants_possible && it.lease != Lease::WrittenOff) {
                it.guard = GuardState::Expired;
                it.lease = Lease::WrittenOff;
                it.draining = false;
            }
        }
    }
}

/// Numbers a session's epochs from one, including those of its tasks, tools and in-flight grants. Zero stays zero:
/// never claimed.
fn renumber_epochs(state: &mut State) {
    for index in 0..state.sessions.len() {
        let session = byte(index);
        let mut epochs = vec![0, state.sessions[index].row.epoch];
        for incarnation in state.incarnations_mut() {
            for_each_grant(incarnation, session, |grant| epochs.push(grant.epoch));
        }
        epochs.sort_unstable();
        epochs.dedup();
        let rank = |epoch: u8| epochs.iter().position(|it| *it == epoch).map_or(epoch, byte);
        state.sessions[index].row.epoch = rank(state.sessions[index].row.epoch);
        for incarnation in state.incarnations_mut() {
            for_each_grant(incarnation, session, |grant| grant.epoch = rank(grant.epoch));
        }
    }
}

fn for_each_grant(incarnation: &mut Incarnation, session: u8, mut change: impl FnMut(&mut Grant)) {
    for task in incarnation.tasks.iter_mut().filter(|task| task.session == session) {
        task.phase.grant_mut().into_iter().for_each(&mut change);
    }
    for in_flight_grant in
        incarnation.in_flight_grants.iter_mut().filter(|in_flight_grant| in_flight_grant.session == session)
    {
        in_flight_grant.phase.grant_mut().into_iter().for_each(&mut change);
    }
    for tool in incarnation.tools.iter_mut().filter(|tool| tool.session == session) {
        change(&mut tool.grant);
    }
}

fn sort_workers(state: &mut State) {
    // What workers own distinguishes otherwise equal ones.
    let owned = |worker: usize| {
        let of = move |owner: Option<IncarnationId>| owner.filter(|it| usize::from(it.worker) == worker);
        state.sessions.iter().map(move |session| of(session.row.owner).map(|it| it.incarnation))
    };
    let mut order: Vec<usize> = (0..state.workers.len()).collect();
    order.sort_by(|a, b| state.workers[*a].cmp(&state.workers[*b]).then_with(|| owned(*a).cmp(owned(*b))));
    if order.is_sorted() {
        return;
    }
    let workers = order.iter().map(|worker| std::mem::take(&mut state.workers[*worker])).collect();
    state.workers = workers;
    for owner in state.sessions.iter_mut().filter_map(|session| session.row.owner.as_mut()) {
        owner.worker =
            order.iter().position(|it| *it == usize::from(owner.worker)).map_or(owner.worker, byte);
    }
}

fn byte(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}
