//! Workers: the steps of their tasks, and how an incarnation ends.

use crate::{
    action::{TaskStep, WorkerEvent},
    broker, in_flight_grant,
    scope::{Call, DirectGrants, Mutation, Scope},
    state::{
        Age, Grant, GuardState, Incarnation, IncarnationId, Lease, Origin, Phase, SessionIndex, State, Step,
        Task, Token, Tool,
    },
    store::{self, ClaimResponse, EndResponse},
};

/// Whether the current incarnation of a worker would take this token now.
pub(crate) fn would_take(scope: &Scope, incarnation: &Incarnation, session: SessionIndex) -> bool {
    can_accept(scope, incarnation)
        && (!is_active(incarnation, session) || scope.broken(Mutation::NoSessionGuard))
}

pub(crate) fn can_accept(scope: &Scope, incarnation: &Incarnation) -> bool {
    !incarnation.draining && has_free_slot(scope, incarnation)
}

pub(crate) fn has_free_slot(scope: &Scope, incarnation: &Incarnation) -> bool {
    incarnation.tasks.iter().filter(|task| task.occupies_slot()).count() < scope.slots
}

pub(crate) fn is_active(incarnation: &Incarnation, session: SessionIndex) -> bool {
    incarnation.tasks.iter().any(|task| task.session == session && task.holds_session())
}

pub(crate) fn deliver(state: &mut State, session: SessionIndex, incarnation: IncarnationId) {
    let task =
        Task { session, token_is_current: true, origin: Origin::Token, served: 0, phase: Phase::Claim };
    state.incarnation_mut(incarnation).tasks.push(task);
}

/// Whether an incarnation could be granted a session whose first run is submitted now. Another process cannot see its
/// current state: it may be full, draining, or over.
pub(crate) fn can_be_granted(scope: &Scope, state: &State, id: IncarnationId, session: SessionIndex) -> bool {
    let incarnation = state.incarnation(id);
    incarnation.lease == Lease::Held
        && match scope.direct_grants {
            DirectGrants::Never => false,
            DirectGrants::SameProcess => is_alive(state, id) && would_take(scope, incarnation, session),
            DirectGrants::OverNetwork => true,
        }
}

/// Starts a task without a token.
pub(crate) fn start_task(
    state: &mut State,
    session: SessionIndex,
    incarnation: IncarnationId,
    origin: Origin,
    phase: Phase,
) {
    let tasks = &mut state.incarnation_mut(incarnation).tasks;
    tasks.push(Task { session, token_is_current: false, origin, served: 0, phase });
    tasks.sort_unstable();
}

/// The steps that a task can take next: one, or two while it drains.
pub(crate) fn steps(scope: &Scope, incarnation: &Incarnation, task: &Task) -> impl Iterator<Item = TaskStep> {
    let step = match task.phase {
        Phase::Claim => TaskStep::Claim,
        Phase::Interrupt(..) => TaskStep::RecordInterrupted,
        Phase::Announce(..) => TaskStep::Announce,
        Phase::Start(..) => TaskStep::StartTool,
        Phase::Running(..) => TaskStep::FinishTool,
        Phase::Record(..) => TaskStep::RecordOutcome,
        Phase::End(..) => TaskStep::EndRun,
        Phase::Release(..) => TaskStep::Release,
        Phase::Ack => TaskStep::Ack,
        Phase::Recheck => TaskStep::Recheck,
        Phase::Publish => TaskStep::Republish,
    };
    let at_boundary = match task.phase {
        Phase::Announce(..) => true,
        Phase::Start(_, call) => scope.calls[usize::from(call)] == Call::Repeatable,
        _ => false,
    };
    let hand_over = (incarnation.draining && at_boundary).then_some(TaskStep::HandOver);
    std::iter::once(step).chain(hand_over)
}

/// Takes one step of a task.
pub(crate) fn work(
    scope: &Scope,
    state: &mut State,
    incarnation: IncarnationId,
    index: usize,
    step: TaskStep,
) {
    let task = state.incarnation(incarnation).tasks[index].clone();
    let after = match (step, task.phase) {
        (TaskStep::HandOver, Phase::Announce(grant, _) | Phase::Start(grant, _)) => {
            Some(Phase::Release(grant))
        }
        (_, phase) => advance(scope, state, incarnation, &task, phase),
    };
    let tasks = &mut state.incarnation_mut(incarnation).tasks;
    match after {
        Some(phase) => {
            let task = &mut tasks[index];
            task.served = match (task.phase.grant(), phase.grant()) {
                (Some(before), Some(now)) => task.served + u8::from(before.run != now.run),
                _ => 0,
            };
            task.phase = phase;
        }
        None => drop(tasks.remove(index)),
    }
    // The order of an incarnation's tasks is irrelevant.
    tasks.sort_unstable();
}

/// Executes a task's phase. Returns the next phase, or `None` when the task ends.
fn advance(
    scope: &Scope,
    state: &mut State,
    incarnation: IncarnationId,
    task: &Task,
    phase: Phase,
) -> Option<Phase> {
    let session = task.session;
    match phase {
        Phase::Claim => match store::claim(scope, state, session, incarnation) {
            ClaimResponse::Granted(phase) => {
                in_flight_grant::drop_superseded(scope, state, incarnation, session);
                match (task.origin, phase.grant()) {
                    (Origin::ReclaimWithoutSlot, Some(grant)) => Some(Phase::Release(grant)),
                    _ => Some(phase),
                }
            }
            ClaimResponse::Reclaimed => Some(Phase::Claim),
            ClaimResponse::NothingToDo if task.origin == Origin::Token => after_release(scope, task, true),
            // The token is put back: a present token can be delivered at any time anyway.
            ClaimResponse::NothingToDo | ClaimResponse::Refused => None,
        },
        Phase::Interrupt(grant, call) | Phase::Record(grant, call) => {
            let next = store::commit_step(scope, state, session, incarnation, grant, (call, Step::Done));
            Some(next.unwrap_or(Phase::Release(grant)))
        }
        Phase::Announce(grant, call) => {
            let next = store::commit_step(scope, state, session, incarnation, grant, (call, Step::Announced));
            Some(next.unwrap_or(Phase::Release(grant)))
        }
        Phase::Start(grant, call) => {
            Some(start_tool(scope, state, incarnation, Tool { session, grant, call }))
        }
        Phase::Running(grant, call) => {
            let tool = Tool { session, grant, call };
            state.incarnation_mut(incarnation).tools.retain(|running| *running != tool);
            Some(after_call(scope, grant, call))
        }
        Phase::End(grant) => {
            let give_up =
                task.served + 1 >= scope.max_consecutive_runs || state.incarnation(incarnation).draining;
            match store::commit_end(scope, state, session, incarnation, grant, give_up) {
                EndResponse::Next(phase) => Some(phase),
                EndResponse::Released => after_release(scope, task, give_up),
                EndResponse::Refused => Some(Phase::Release(grant)),
            }
        }
        Phase::Release(grant) => {
            let released = store::release(state, session, incarnation, grant);
            // Another worker owns the session now: an ack could hit its token, so none is sent.
            if !released && !scope.broken(Mutation::AckAfterLoss) {
                return None;
            }
            after_release(scope, task, true)
        }
        Phase::Ack => {
            if task.token_is_current {
                broker::remove(state, session);
            }
            after_ack(scope)
        }
        Phase::Recheck => after_recheck(scope, store::is_runnable(state, session)),
        Phase::Publish => {
            broker::publish(state, session);
            after_publish(scope)
        }
    }
}

/// Starts a tool, unless the guard has expired: then it is killed before it begins.
fn start_tool(scope: &Scope, state: &mut State, incarnation: IncarnationId, tool: Tool) -> Phase {
    let Tool { session, grant, call } = tool;
    let ungated = scope.broken(Mutation::UngatedStart) || scope.broken(Mutation::NoSelfFence);
    if state.incarnation(incarnation).guard == GuardState::Expired && !ungated {
        return after_call(scope, grant, call);
    }
    let record = &mut state.session_mut(session).runs[usize::from(grant.run)].calls[usize::from(call)];
    let mutating = scope.calls[usize::from(call)] == Call::Mutating;
    let repeated = record.step == Step::Done || (mutating && record.started);
    record.started = true;
    state.violations.repeated_call |= repeated;
    let tools = &mut state.incarnation_mut(incarnation).tools;
    tools.push(tool);
    tools.sort_unstable();
    Phase::Running(grant, call)
}

/// The outcome of a run's last call is part of the run's end.
fn after_call(scope: &Scope, grant: Grant, call: u8) -> Phase {
    match usize::from(call) + 1 == scope.calls.len() {
        true => Phase::End(grant),
        false => Phase::Record(grant, call),
    }
}

/// Without a token there is none to ack, and no recheck is needed unless `runs_may_wait`: a later submit wakes a
/// worker.
fn after_release(scope: &Scope, task: &Task, runs_may_wait: bool) -> Option<Phase> {
    match task.origin {
        Origin::Token if scope.broken(Mutation::RecheckBeforeAck) => Some(Phase::Recheck),
        Origin::Token => Some(Phase::Ack),
        _ => (runs_may_wait && !scope.broken(Mutation::NoRecheckWithoutToken)).then_some(Phase::Recheck),
    }
}

pub(crate) fn after_ack(scope: &Scope) -> Option<Phase> {
    (!scope.broken(Mutation::RecheckBeforeAck)).then_some(Phase::Recheck)
}

fn after_recheck(scope: &Scope, runnable: bool) -> Option<Phase> {
    match runnable {
        true => Some(Phase::Publish),
        false => after_publish(scope),
    }
}

pub(crate) fn after_publish(scope: &Scope) -> Option<Phase> {
    scope.broken(Mutation::RecheckBeforeAck).then_some(Phase::Ack)
}

/// Whether this event can happen to an incarnation now. `present` means that it is its worker's current one.
pub(crate) fn event_is_possible(
    scope: &Scope,
    incarnation: &Incarnation,
    present: bool,
    down: bool,
    event: WorkerEvent,
) -> bool {
    let alive = present && !down;
    match event {
        WorkerEvent::GuardExpires => incarnation.guard == GuardState::Starved,
        // What makes takeovers safe: tools are dead before the lease expires.
        WorkerEvent::LeaseEnds => {
            incarnation.lease == Lease::Held
                && (incarnation.guard == GuardState::Expired
                    || (incarnation.guard == GuardState::Starved && scope.broken(Mutation::NoSelfFence)))
        }
        WorkerEvent::NoticeLoss => alive && incarnation.guard == GuardState::Expired,
        // Grants sent before the drain was known have to arrive first.
        WorkerEvent::SignOff => {
            let expects =
                incarnation.in_flight_grants.iter().any(|in_flight_grant| in_flight_grant.age == Age::Fresh);
            let waits = expects && !scope.broken(Mutation::NoWaitForLastGrants);
            alive && incarnation.draining && incarnation.tasks.is_empty() && !waits
        }
        WorkerEvent::Restart => present && down,
    }
}

pub(crate) fn apply_event(scope: &Scope, state: &mut State, id: IncarnationId, event: WorkerEvent) {
    let incarnation = state.incarnation_mut(id);
    match event {
        WorkerEvent::GuardExpires => {
            incarnation.guard = GuardState::Expired;
            if !scope.broken(Mutation::NoSelfFence) {
                incarnation.tools.clear();
            }
        }
        WorkerEvent::LeaseEnds => incarnation.lease = Lease::Ended,
        WorkerEvent::NoticeLoss => {
            // Acks, rechecks and publishes under way continue.
            incarnation.tasks.retain(|task| !task.phase.holds_session());
            if !scope.broken(Mutation::NoSelfFence) {
                incarnation.tools.clear();
            }
            begin_incarnation(state, id);
        }
        WorkerEvent::SignOff => {
            *incarnation = Incarnation {
                guard: GuardState::Expired,
                lease: Lease::WrittenOff,
                ..Incarnation::default()
            };
            begin_incarnation(state, id);
        }
        WorkerEvent::Restart => {
            state.workers[usize::from(id.worker)].down = false;
            begin_incarnation(state, id);
        }
    }
}

fn begin_incarnation(state: &mut State, last: IncarnationId) {
    in_flight_grant::forget(state.incarnation_mut(last));
    state.workers[usize::from(last.worker)].incarnations.push(Incarnation::default());
}

/// The process is gone, with all its tasks. Its tools are left to the guard.
pub(crate) fn crash(state: &mut State, id: IncarnationId) {
    let worker = &mut state.workers[usize::from(id.worker)];
    worker.down = true;
    for incarnation in &mut worker.incarnations {
        incarnation.tasks.clear();
        in_flight_grant::forget(incarnation);
    }
    stall(state, id);
}

pub(crate) fn stall(state: &mut State, id: IncarnationId) {
    let incarnation = state.incarnation_mut(id);
    if incarnation.guard == GuardState::Fed {
        incarnation.guard = GuardState::Starved;
    }
}

pub(crate) fn is_present(state: &State, id: IncarnationId) -> bool {
    usize::from(id.incarnation) + 1 == state.workers[usize::from(id.worker)].incarnations.len()
}

/// Whether the incarnation is the current one of a running worker.
pub(crate) fn is_alive(state: &State, id: IncarnationId) -> bool {
    is_present(state, id) && !state.workers[usize::from(id.worker)].down
}

/// Whether the broker has a deliverable token for this session.
pub(crate) fn is_deliverable(state: &State, session: SessionIndex) -> bool {
    state.session(session).token == Token::Present
}
