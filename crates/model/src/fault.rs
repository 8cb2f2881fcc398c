//! What goes wrong.

use crate::{
    action::Fault,
    broker, parcel, reconciler,
    scope::{Faults, Scope},
    state::{Age, Lease, LifeId, Phase, State, Token, Watch},
    store, worker,
};

/// All faults that the budget and the state allow.
pub(crate) fn possible(scope: &Scope, state: &State) -> Vec<Fault> {
    let left = &state.faults;
    let mut faults = Vec::new();
    for (place, worker) in (0..).zip(&state.workers) {
        for (life, it) in (0..).zip(&worker.lives) {
            let id = LifeId { worker: place, life };
            if it.lease == Lease::Ended {
                faults.push(Fault::LateRenewal(id));
            }
            if left.timeouts > 0 {
                let unanswered = |phase| matches!(phase, Phase::Claim | Phase::Ack | Phase::Publish);
                let tasks = it.tasks.iter().enumerate().filter(|(_, task)| unanswered(task.phase));
                faults.extend(tasks.map(|(index, _)| Fault::WorkTimesOut(id, index)));
            }
            if worker.down || !worker::is_present(state, id) {
                continue;
            }
            faults.extend((left.crashes > 0).then_some(Fault::Crash(id)));
            faults.extend((left.stalls > 0 && it.watch == Watch::Fed).then_some(Fault::Stall(id)));
            faults.extend((left.drains > 0 && !it.draining).then_some(Fault::Drain(id)));
            if left.parcels > 0 {
                let fresh = |index: &usize| it.parcels[*index].age == Age::Fresh;
                faults.extend((0..it.parcels.len()).map(|index| Fault::LoseParcel(id, index)));
                let late = (0..it.parcels.len()).filter(fresh);
                faults.extend(late.map(|index| Fault::DelayParcel(id, index)));
            }
        }
    }
    for (index, session) in (0..).zip(&state.sessions) {
        let was_delivered = session.row.epoch > 0;
        let orphan = left.orphans > 0 && session.token == Token::Absent && was_delivered;
        faults.extend(orphan.then_some(Fault::Orphan(index)));
        faults.extend((left.timeouts > 0 && session.wakes > 0).then_some(Fault::WakeTimesOut(index)));
        faults.extend((session.late_publishes > 0).then_some(Fault::LatePublish(index)));
        faults.extend(session.late_ack.then_some(Fault::LateAck(index)));
        if left.false_alarms > 0 {
            let owner = parcel::owner_to_tell(scope, state, index);
            let told = owner.filter(|owner| worker::is_in_hand(state.life(*owner), index));
            faults.extend(told.map(|_| Fault::FalseAlarm(index)));
        }
    }
    let sweeping = !state.reconciler.todo.is_empty() && !state.reconciler.replacing;
    faults.extend((left.timeouts > 0 && sweeping).then_some(Fault::SweepTimesOut));
    faults.extend((left.plane_crashes > 0).then_some(Fault::CrashPlane));
    let under_way = state.lives().any(|life| !life.parcels.is_empty());
    faults.extend((left.plane_crashes > 0 && under_way).then_some(Fault::CrashPlaneUnsent));
    faults.extend((left.wipes > 0).then_some(Fault::Wipe));
    faults
}

pub(crate) fn strike(scope: &Scope, state: &mut State, fault: Fault) {
    spend(&mut state.faults, fault);
    match fault {
        Fault::Crash(life) => worker::crash(state, life),
        Fault::Stall(life) => worker::stall(state, life),
        Fault::Drain(life) => state.life_mut(life).draining = true,
        Fault::CrashPlane => crash_plane(state),
        Fault::CrashPlaneUnsent => {
            crash_plane(state);
            state.lives_mut().for_each(|life| life.parcels.clear());
        }
        Fault::Wipe => (0..).zip(0..state.sessions.len()).for_each(|(index, _)| broker::remove(state, index)),
        Fault::Orphan(session) => state.session_mut(session).token = Token::Orphan,
        Fault::WakeTimesOut(session) => {
            let session = state.session_mut(session);
            session.wakes -= 1;
            session.late_publishes += 1;
        }
        Fault::SweepTimesOut => {
            let session = state.reconciler.todo[0];
            state.session_mut(session).late_publishes += 1;
            reconciler::give_up(state);
        }
        Fault::WorkTimesOut(life, index) => work_times_out(scope, state, life, index),
        Fault::LoseParcel(life, index) => drop(state.life_mut(life).parcels.remove(index)),
        Fault::DelayParcel(life, index) => {
            let parcels = &mut state.life_mut(life).parcels;
            parcels[index].age = Age::Late;
            parcels.sort_unstable();
        }
        Fault::LatePublish(session) => {
            state.session_mut(session).late_publishes -= 1;
            broker::publish(state, session);
        }
        Fault::FalseAlarm(session) => parcel::tell(state, session),
        Fault::LateAck(session) => broker::remove(state, session),
        Fault::LateRenewal(life) => state.life_mut(life).lease = Lease::Held,
    }
}

/// What was under way already costs nothing any more.
fn spend(left: &mut Faults, fault: Fault) {
    let budget = match fault {
        Fault::Crash(_) => &mut left.crashes,
        Fault::Stall(_) => &mut left.stalls,
        Fault::Drain(_) => &mut left.drains,
        Fault::FalseAlarm(_) => &mut left.false_alarms,
        Fault::CrashPlane | Fault::CrashPlaneUnsent => &mut left.plane_crashes,
        Fault::Wipe => &mut left.wipes,
        Fault::Orphan(_) => &mut left.orphans,
        Fault::WakeTimesOut(_) | Fault::SweepTimesOut | Fault::WorkTimesOut(..) => &mut left.timeouts,
        Fault::LoseParcel(..) | Fault::DelayParcel(..) => &mut left.parcels,
        Fault::LatePublish(_) | Fault::LateAck(_) | Fault::LateRenewal(_) => return,
    };
    *budget -= 1;
}

/// What was owed is forgotten.
fn crash_plane(state: &mut State) {
    state.reconciler = Default::default();
    for session in &mut state.sessions {
        session.wakes = 0;
    }
}

/// A worker that hears nothing of its ack looks all the same, and one that hears nothing of its publish leaves the session
/// to the reconciler. One that hears nothing of its claim claims again.
fn work_times_out(scope: &Scope, state: &mut State, life: LifeId, index: usize) {
    let task = state.life(life).tasks[index].clone();
    let session = task.session;
    let after = match task.phase {
        Phase::Ack => {
            state.session_mut(session).late_ack |= task.token_is_current;
            worker::after_ack(scope)
        }
        Phase::Publish => {
            state.session_mut(session).late_publishes += 1;
            worker::after_publish(scope)
        }
        phase => {
            store::claim(scope, state, session, life);
            Some(phase)
        }
    };
    let tasks = &mut state.life_mut(life).tasks;
    match after {
        Some(phase) => tasks[index].phase = phase,
        None => drop(tasks.remove(index)),
    }
    tasks.sort_unstable();
}
