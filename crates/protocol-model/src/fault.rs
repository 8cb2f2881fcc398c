//! Faults: which are possible, and what they do.

use crate::{
    action::Fault,
    broker, in_flight_grant, reconciler,
    scope::{Faults, Scope},
    state::{Age, GuardState, IncarnationId, Lease, Phase, State, Token},
    store, worker,
};

/// All faults that the budget and the state allow.
pub(crate) fn possible(scope: &Scope, state: &State) -> Vec<Fault> {
    let left = &state.faults;
    let mut faults = Vec::new();
    for (place, worker) in (0..).zip(&state.workers) {
        for (incarnation, it) in (0..).zip(&worker.incarnations) {
            let id = IncarnationId { worker: place, incarnation };
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
            faults.extend((left.stalls > 0 && it.guard == GuardState::Fed).then_some(Fault::Stall(id)));
            faults.extend((left.drains > 0 && !it.draining).then_some(Fault::Drain(id)));
            if left.grant_faults > 0 {
                let fresh = |index: &usize| it.in_flight_grants[*index].age == Age::Fresh;
                faults.extend((0..it.in_flight_grants.len()).map(|index| Fault::LoseGrant(id, index)));
                let late = (0..it.in_flight_grants.len()).filter(fresh);
                faults.extend(late.map(|index| Fault::DelayGrant(id, index)));
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
            let owner = in_flight_grant::owner_to_signal(scope, state, index);
            let pending_reclaims = owner.filter(|owner| worker::is_active(state.incarnation(*owner), index));
            faults.extend(pending_reclaims.map(|_| Fault::FalseAlarm(index)));
        }
    }
    let sweeping = !state.reconciler.todo.is_empty() && !state.reconciler.replacing;
    faults.extend((left.timeouts > 0 && sweeping).then_some(Fault::SweepTimesOut));
    faults.extend((left.plane_crashes > 0).then_some(Fault::CrashPlane));
    let under_way = state.incarnations().any(|incarnation| !incarnation.in_flight_grants.is_empty());
    faults.extend((left.plane_crashes > 0 && under_way).then_some(Fault::CrashPlaneUnsent));
    faults.extend((left.wipes > 0).then_some(Fault::Wipe));
    faults
}

pub(crate) fn apply(scope: &Scope, state: &mut State, fault: Fault) {
    spend(&mut state.faults, fault);
    match fault {
        Fault::Crash(incarnation) => worker::crash(state, incarnation),
        Fault::Stall(incarnation) => worker::stall(state, incarnation),
        Fault::Drain(incarnation) => state.incarnation_mut(incarnation).draining = true,
        Fault::CrashPlane => crash_plane(state),
        Fault::CrashPlaneUnsent => {
            crash_plane(state);
            state.incarnations_mut().for_each(|incarnation| incarnation.in_flight_grants.clear());
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
        Fault::WorkTimesOut(incarnation, index) => work_times_out(scope, state, incarnation, index),
        Fault::LoseGrant(incarnation, index) => {
            state.incarnation_mut(incarnation).in_flight_grants.remove(index);
        }
        Fault::DelayGrant(incarnation, index) => {
            let in_flight_grants = &mut state.incarnation_mut(incarnation).in_flight_grants;
            in_flight_grants[index].age = Age::Late;
            in_flight_grants.sort_unstable();
        }
        Fault::LatePublish(session) => {
            state.session_mut(session).late_publishes -= 1;
            broker::publish(state, session);
        }
        Fault::FalseAlarm(session) => in_flight_grant::signal_reclaim(state, session),
        Fault::LateAck(session) => broker::remove(state, session),
        Fault::LateRenewal(incarnation) => state.incarnation_mut(incarnation).lease = Lease::Held,
    }
}

/// Late effects of an earlier fault cost nothing.
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
        Fault::LoseGrant(..) | Fault::DelayGrant(..) => &mut left.grant_faults,
        Fault::LatePublish(_) | Fault::LateAck(_) | Fault::LateRenewal(_) => return,
    };
    *budget -= 1;
}

/// Owed publishes are forgotten.
fn crash_plane(state: &mut State) {
    state.reconciler = Default::default();
    for session in &mut state.sessions {
        session.wakes = 0;
    }
}

/// A worker without a response to its ack rechecks all the same, and one without a response to its publish leaves the
/// session to the reconciler. One without a response to its claim claims again.
fn work_times_out(scope: &Scope, state: &mut State, incarnation: IncarnationId, index: usize) {
    let task = state.incarnation(incarnation).tasks[index].clone();
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
            store::claim(scope, state, session, incarnation);
            Some(phase)
        }
    };
    let tasks = &mut state.incarnation_mut(incarnation).tasks;
    match after {
        Some(phase) => tasks[index].phase = phase,
        None => drop(tasks.remove(index)),
    }
    tasks.sort_unstable();
}
