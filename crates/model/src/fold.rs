//! One state for all that differ only in names.
//!
//! Workers are alike, so exchanging them changes nothing; of epochs only their order matters; a life that nobody can
//! ever hear of again might as well never have been. Folding these together leaves fewer states to explore.

use crate::{
    scope::{Scope, StandBy},
    state::{Grant, Lease, Life, LifeId, State, Watch},
};

/// Gives the state the smallest names it can have.
pub(crate) fn fold(scope: &Scope, mut state: State) -> State {
    let grants_come = grants_come(scope, &state);
    forget_lives(&mut state, grants_come);
    forget_leases(&mut state, grants_come);
    renumber_epochs(&mut state);
    sort_workers(&mut state);
    state
}

/// Whether submits may yet grant sessions to lives that are over, as nobody has told their control plane.
fn grants_come(scope: &Scope, state: &State) -> bool {
    let submitted = state.sessions.iter().map(|session| session.runs.len());
    scope.stand_by == StandBy::OverWire && !submitted.eq(scope.runs.iter().map(|runs| usize::from(*runs)))
}

/// Drops past lives without anything in hand that no session names as its owner, and none will.
fn forget_lives(state: &mut State, grants_come: bool) {
    for worker in 0..state.workers.len() {
        let mut life = 0;
        while life + 1 < state.workers[worker].lives.len() {
            let owner = |worker: usize, life: usize| Some(LifeId { worker: byte(worker), life: byte(life) });
            let past = &state.workers[worker].lives[life];
            let named = state.sessions.iter().any(|session| session.row.owner == owner(worker, life));
            if named || !is_over(past) || (grants_come && past.lease != Lease::WrittenOff) {
                life += 1;
                continue;
            }
            state.workers[worker].lives.remove(life);
            for owner in state.sessions.iter_mut().filter_map(|session| session.row.owner.as_mut()) {
                if usize::from(owner.worker) == worker && usize::from(owner.life) > life {
                    owner.life -= 1;
                }
            }
        }
    }
}

/// Whether nothing of a past life can act or be acted upon, its lease aside, which matters to its sessions only.
fn is_over(life: &Life) -> bool {
    life.tasks.is_empty() && life.tools.is_empty()
}

/// The lease of a life that can neither claim nor start anything matters to the sessions it owns or may be granted, and to nobody
/// else.
fn forget_leases(state: &mut State, grants_come: bool) {
    let owners: Vec<LifeId> = state.sessions.iter().filter_map(|session| session.row.owner).collect();
    for (place, worker) in (0..).zip(&mut state.workers) {
        let past = worker.lives.len() - usize::from(!worker.down);
        for (life, it) in (0..).zip(&mut worker.lives[..past]) {
            let owns = owners.contains(&LifeId { worker: place, life });
            if it.tools.is_empty() && !owns && !(grants_come && it.lease != Lease::WrittenOff) {
                it.watch = Watch::TimeUp;
                it.lease = Lease::WrittenOff;
                it.draining = false;
            }
        }
    }
}

/// Numbers a session's epochs from one, those of its tasks, tools and parcels included. Zero stays zero: never claimed.
fn renumber_epochs(state: &mut State) {
    for index in 0..state.sessions.len() {
        let session = byte(index);
        let mut epochs = vec![0, state.sessions[index].row.epoch];
        for life in state.lives_mut() {
            for_each_grant(life, session, |grant| epochs.push(grant.epoch));
        }
        epochs.sort_unstable();
        epochs.dedup();
        let rank = |epoch: u8| epochs.iter().position(|it| *it == epoch).map_or(epoch, byte);
        state.sessions[index].row.epoch = rank(state.sessions[index].row.epoch);
        for life in state.lives_mut() {
            for_each_grant(life, session, |grant| grant.epoch = rank(grant.epoch));
        }
    }
}

fn for_each_grant(life: &mut Life, session: u8, mut change: impl FnMut(&mut Grant)) {
    for task in life.tasks.iter_mut().filter(|task| task.session == session) {
        task.phase.grant_mut().into_iter().for_each(&mut change);
    }
    for parcel in life.parcels.iter_mut().filter(|parcel| parcel.session == session) {
        parcel.phase.grant_mut().into_iter().for_each(&mut change);
    }
    for tool in life.tools.iter_mut().filter(|tool| tool.session == session) {
        change(&mut tool.grant);
    }
}

fn sort_workers(state: &mut State) {
    // What a worker owns tells equal ones apart.
    let owned = |worker: usize| {
        let of = move |owner: Option<LifeId>| owner.filter(|it| usize::from(it.worker) == worker);
        state.sessions.iter().map(move |session| of(session.row.owner).map(|it| it.life))
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
