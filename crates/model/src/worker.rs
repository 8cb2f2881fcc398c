//! Workers: what a task does with its token, and how a life ends.

use crate::{
    action::{Event, Work},
    broker, parcel,
    scope::{Call, Mutation, Scope, StandBy},
    state::{
        Age, Grant, Lease, Life, LifeId, Origin, Phase, SessionIndex, State, Step, Task, Token, Tool, Watch,
    },
    store::{self, ClaimAnswer, EndAnswer},
};

/// Whether the present life of a worker would take this token now.
pub(crate) fn takes(scope: &Scope, life: &Life, session: SessionIndex) -> bool {
    has_room(scope, life) && (!is_in_hand(life, session) || scope.broken(Mutation::NoHold))
}

pub(crate) fn has_room(scope: &Scope, life: &Life) -> bool {
    !life.draining && has_slot(scope, life)
}

pub(crate) fn has_slot(scope: &Scope, life: &Life) -> bool {
    life.tasks.iter().filter(|task| task.has_slot()).count() < scope.slots
}

pub(crate) fn is_in_hand(life: &Life, session: SessionIndex) -> bool {
    life.tasks.iter().any(|task| task.session == session && task.holds_session())
}

pub(crate) fn deliver(state: &mut State, session: SessionIndex, life: LifeId) {
    let task =
        Task { session, token_is_current: true, origin: Origin::Token, served: 0, phase: Phase::Claim };
    state.life_mut(life).tasks.push(task);
}

/// Whether a life could be granted a session whose first run is submitted now. From another process it cannot be seen what has become
/// of one that offered room: it may be full, drain, or be over.
pub(crate) fn stands_by(scope: &Scope, state: &State, id: LifeId, session: SessionIndex) -> bool {
    let life = state.life(id);
    life.lease == Lease::Held
        && match scope.stand_by {
            StandBy::Nobody => false,
            StandBy::SameProcess => is_alive(state, id) && takes(scope, life, session),
            StandBy::OverWire => true,
        }
}

/// Takes a session into hand without a token.
pub(crate) fn take_up(state: &mut State, session: SessionIndex, life: LifeId, origin: Origin, phase: Phase) {
    let tasks = &mut state.life_mut(life).tasks;
    tasks.push(Task { session, token_is_current: false, origin, served: 0, phase });
    tasks.sort_unstable();
}

/// The steps that a task can take next: one, or two while it drains.
pub(crate) fn steps(scope: &Scope, life: &Life, task: &Task) -> impl Iterator<Item = Work> {
    let step = match task.phase {
        Phase::Claim => Work::Claim,
        Phase::Interrupt(..) => Work::RecordInterrupted,
        Phase::Announce(..) => Work::Announce,
        Phase::Start(..) => Work::StartTool,
        Phase::Running(..) => Work::FinishTool,
        Phase::Record(..) => Work::RecordOutcome,
        Phase::End(..) => Work::EndRun,
        Phase::LetGo(..) => Work::Release,
        Phase::Ack => Work::Ack,
        Phase::Look => Work::Look,
        Phase::Publish => Work::PublishAgain,
    };
    let at_boundary = match task.phase {
        Phase::Announce(..) => true,
        Phase::Start(_, call) => scope.calls[usize::from(call)] == Call::Repeatable,
        _ => false,
    };
    let hand_over = (life.draining && at_boundary).then_some(Work::HandOver);
    std::iter::once(step).chain(hand_over)
}

/// Takes one step of a task.
pub(crate) fn work(scope: &Scope, state: &mut State, life: LifeId, index: usize, step: Work) {
    let task = state.life(life).tasks[index].clone();
    let after = match (step, task.phase) {
        (Work::HandOver, Phase::Announce(grant, _) | Phase::Start(grant, _)) => Some(Phase::LetGo(grant)),
        (_, phase) => advance(scope, state, life, &task, phase),
    };
    let tasks = &mut state.life_mut(life).tasks;
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
    // The order of a life's tasks means nothing.
    tasks.sort_unstable();
}

/// Does what a task's phase says. Returns the next phase, or `None` when the task is over.
fn advance(scope: &Scope, state: &mut State, life: LifeId, task: &Task, phase: Phase) -> Option<Phase> {
    let session = task.session;
    match phase {
        Phase::Claim => match store::claim(scope, state, session, life) {
            ClaimAnswer::Granted(phase) => {
                parcel::overtake(scope, state, life, session);
                match (task.origin, phase.grant()) {
                    (Origin::OwnInExcess, Some(grant)) => Some(Phase::LetGo(grant)),
                    _ => Some(phase),
                }
            }
            ClaimAnswer::TakenBack => Some(Phase::Claim),
            ClaimAnswer::NothingToDo if task.origin == Origin::Token => after_release(scope, task, true),
            // A token is given back: one that is present can be delivered at any time anyway.
            ClaimAnswer::NothingToDo | ClaimAnswer::Refused => None,
        },
        Phase::Interrupt(grant, call) | Phase::Record(grant, call) => {
            let next = store::commit_step(scope, state, session, life, grant, (call, Step::Done));
            Some(next.unwrap_or(Phase::LetGo(grant)))
        }
        Phase::Announce(grant, call) => {
            let next = store::commit_step(scope, state, session, life, grant, (call, Step::Announced));
            Some(next.unwrap_or(Phase::LetGo(grant)))
        }
        Phase::Start(grant, call) => Some(start_tool(scope, state, life, Tool { session, grant, call })),
        Phase::Running(grant, call) => {
            let tool = Tool { session, grant, call };
            state.life_mut(life).tools.retain(|running| *running != tool);
            Some(after_call(scope, grant, call))
        }
        Phase::End(grant) => {
            let give_up = task.served + 1 >= scope.turn || state.life(life).draining;
            match store::commit_end(scope, state, session, life, grant, give_up) {
                EndAnswer::Next(phase) => Some(phase),
                EndAnswer::Released => after_release(scope, task, give_up),
                EndAnswer::Refused => Some(Phase::LetGo(grant)),
            }
        }
        Phase::LetGo(grant) => {
            let released = store::release(state, session, life, grant);
            // Someone else's now: an ack could hit the new owner's token, so nothing is sent.
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
        Phase::Look => after_look(scope, store::is_runnable(state, session)),
        Phase::Publish => {
            broker::publish(state, session);
            after_publish(scope)
        }
    }
}

/// Starts a tool, unless the guard's time is up: then it is killed before it begins.
fn start_tool(scope: &Scope, state: &mut State, life: LifeId, tool: Tool) -> Phase {
    let Tool { session, grant, call } = tool;
    let ungated = scope.broken(Mutation::UngatedStart) || scope.broken(Mutation::NoSelfFence);
    if state.life(life).watch == Watch::TimeUp && !ungated {
        return after_call(scope, grant, call);
    }
    let record = &mut state.session_mut(session).runs[usize::from(grant.run)].calls[usize::from(call)];
    let mutating = scope.calls[usize::from(call)] == Call::Mutating;
    let repeated = record.step == Step::Done || (mutating && record.started);
    record.started = true;
    state.evidence.repeated_call |= repeated;
    let tools = &mut state.life_mut(life).tools;
    tools.push(tool);
    tools.sort_unstable();
    Phase::Running(grant, call)
}

/// The outcome of a run's last call travels in the run's end.
fn after_call(scope: &Scope, grant: Grant, call: u8) -> Phase {
    match usize::from(call) + 1 == scope.calls.len() {
        true => Phase::End(grant),
        false => Phase::Record(grant, call),
    }
}

/// Without a token there is none to ack, and nothing to look for unless `runs_may_wait`: whoever submits from here on wakes somebody.
fn after_release(scope: &Scope, task: &Task, runs_may_wait: bool) -> Option<Phase> {
    match task.origin {
        Origin::Token if scope.broken(Mutation::LookBeforeAck) => Some(Phase::Look),
        Origin::Token => Some(Phase::Ack),
        _ => (runs_may_wait && !scope.broken(Mutation::NoLookWithoutToken)).then_some(Phase::Look),
    }
}

pub(crate) fn after_ack(scope: &Scope) -> Option<Phase> {
    (!scope.broken(Mutation::LookBeforeAck)).then_some(Phase::Look)
}

fn after_look(scope: &Scope, runnable: bool) -> Option<Phase> {
    match runnable {
        true => Some(Phase::Publish),
        false => after_publish(scope),
    }
}

pub(crate) fn after_publish(scope: &Scope) -> Option<Phase> {
    scope.broken(Mutation::LookBeforeAck).then_some(Phase::Ack)
}

/// Whether a life can meet with this now. `present` says that it is its worker's present one.
pub(crate) fn can_happen(scope: &Scope, life: &Life, present: bool, down: bool, event: Event) -> bool {
    let alive = present && !down;
    match event {
        Event::TimeUp => life.watch == Watch::Hungry,
        // What makes takeovers safe: tools are dead before the lease ends.
        Event::LeaseEnds => {
            life.lease == Lease::Held
                && (life.watch == Watch::TimeUp
                    || (life.watch == Watch::Hungry && scope.broken(Mutation::NoSelfFence)))
        }
        Event::NoticeLoss => alive && life.watch == Watch::TimeUp,
        // What was granted before it was known that it drains has to come first.
        Event::SignOff => {
            let expects = life.parcels.iter().any(|parcel| parcel.age == Age::Fresh);
            let waits = expects && !scope.broken(Mutation::NoLastParcels);
            alive && life.draining && life.tasks.is_empty() && !waits
        }
        Event::Restart => present && down,
    }
}

pub(crate) fn happen(scope: &Scope, state: &mut State, id: LifeId, event: Event) {
    let life = state.life_mut(id);
    match event {
        Event::TimeUp => {
            life.watch = Watch::TimeUp;
            if !scope.broken(Mutation::NoSelfFence) {
                life.tools.clear();
            }
        }
        Event::LeaseEnds => life.lease = Lease::Ended,
        Event::NoticeLoss => {
            // Acks, looks and publishes that are under way go on.
            life.tasks.retain(|task| !task.phase.holds_session());
            if !scope.broken(Mutation::NoSelfFence) {
                life.tools.clear();
            }
            begin_life(state, id);
        }
        Event::SignOff => {
            *life = Life { watch: Watch::TimeUp, lease: Lease::WrittenOff, ..Life::default() };
            begin_life(state, id);
        }
        Event::Restart => {
            state.workers[usize::from(id.worker)].down = false;
            begin_life(state, id);
        }
    }
}

fn begin_life(state: &mut State, last: LifeId) {
    parcel::forget(state.life_mut(last));
    state.workers[usize::from(last.worker)].lives.push(Life::default());
}

/// The process is gone, and everything it had in hand. Its tools are left to the guard.
pub(crate) fn crash(state: &mut State, id: LifeId) {
    let worker = &mut state.workers[usize::from(id.worker)];
    worker.down = true;
    for life in &mut worker.lives {
        life.tasks.clear();
        parcel::forget(life);
    }
    stall(state, id);
}

pub(crate) fn stall(state: &mut State, id: LifeId) {
    let life = state.life_mut(id);
    if life.watch == Watch::Fed {
        life.watch = Watch::Hungry;
    }
}

pub(crate) fn is_present(state: &State, id: LifeId) -> bool {
    usize::from(id.life) + 1 == state.workers[usize::from(id.worker)].lives.len()
}

/// Whether the life goes on.
pub(crate) fn is_alive(state: &State, id: LifeId) -> bool {
    is_present(state, id) && !state.workers[usize::from(id.worker)].down
}

/// Whether the broker has something to give for this session.
pub(crate) fn is_deliverable(state: &State, session: SessionIndex) -> bool {
    state.session(session).token == Token::Present
}
