//! The invariants of every state, and conditions that must be reached for the exploration to be meaningful.

use stateright::Property;

use crate::{
    action::Action,
    protocol::Protocol,
    state::{Incarnation, Lease, Origin, Phase, Run, Session, SessionIndex, State, Step, Task, Token},
};

/// Never two live tool processes of one session, of any runs and workers.
pub const ONE_TOOL_AT_A_TIME: &str = "one tool of a session at a time";
/// An incarnation whose lease has expired, so that its sessions can be taken over, has no live tool process.
pub const NO_TOOL_OUTLIVES_ITS_LEASE: &str = "no tool outlives its lease";
/// No run starts before all earlier ones of its session have ended.
pub const SUBMISSION_ORDER: &str = "runs start in submission order";
pub const ONE_END: &str = "a run ends once";
/// Also, a call with side effects is not started twice, finished or not.
pub const NO_REPEATED_CALL: &str = "a finished call is not executed again";
pub const ONLY_OWNERS_COMMIT: &str = "only the owner's commits are accepted";
/// Once faults cease, every submitted run ends and every token is removed.
pub const NO_RUN_LOST: &str = "no run is lost";
/// Without faults, no run has to wait for the reconciler.
pub const NO_WAKE_UP_LOST: &str = "no wake-up is lost";

/// All invariants.
pub const INVARIANTS: [&str; 8] = [
    ONE_TOOL_AT_A_TIME,
    NO_TOOL_OUTLIVES_ITS_LEASE,
    SUBMISSION_ORDER,
    ONE_END,
    NO_REPEATED_CALL,
    ONLY_OWNERS_COMMIT,
    NO_RUN_LOST,
    NO_WAKE_UP_LOST,
];

/// A session has a new owner while its old one still works.
pub const TAKEOVER: &str = "a takeover is reached";
/// A publish is about to be rejected because the session has a token.
pub const REFUSED_PUBLISH: &str = "a refused publish is reached";
/// A former owner is about to commit the end of a run.
pub const ZOMBIE_COMMIT: &str = "a zombie's commit is reached";
/// A call with side effects is found that was announced by a former owner.
pub const INTERRUPTED_CALL: &str = "an interrupted call is reached";
/// A draining worker is about to release a run between two of its calls.
pub const HAND_OVER: &str = "a hand-over within a run is reached";
/// The reconciler is about to remove an orphan.
pub const ORPHAN_HEALED: &str = "the repair of an orphan is reached";
/// A grant is about to be given back by a worker without a free slot.
pub const DECLINED: &str = "a declined grant is reached";
/// A worker is about to claim a session that it owns, because of a signal or an old grant.
pub const RECLAIMED: &str = "a reclaim by the owner is reached";
/// A worker is about to claim a session while an earlier grant of it is in flight.
pub const SUPERSEDED: &str = "a superseded grant is reached";

type Check = Property<Protocol>;

pub(crate) fn all() -> Vec<Check> {
    vec![
        Check::always(ONE_TOOL_AT_A_TIME, |_, state| {
            each(state, |index, _| state.tools().filter(|tool| tool.session == index).count() <= 1)
        }),
        Check::always(NO_TOOL_OUTLIVES_ITS_LEASE, |_, state| {
            state
                .incarnations()
                .all(|incarnation| incarnation.lease == Lease::Held || incarnation.tools.is_empty())
        }),
        Check::always(SUBMISSION_ORDER, |_, state| each(state, |_, session| starts_in_order(&session.runs))),
        Check::always(ONE_END, |_, state| {
            each(state, |_, session| session.runs.iter().all(|run| run.ends <= 1))
        }),
        Check::always(NO_REPEATED_CALL, |_, state| !state.violations.repeated_call),
        Check::always(ONLY_OWNERS_COMMIT, |_, state| !state.violations.stale_commit),
        Check::always(NO_RUN_LOST, |protocol, state| {
            protocol.recovery.is_possible(protocol, state, |_| true)
        }),
        Check::always(NO_WAKE_UP_LOST, |protocol, state| {
            let unaided = |action: &Action| !matches!(action, Action::Reconcile(_));
            protocol.scope.faults.happened(&state.faults)
                || protocol.unaided_recovery.is_possible(protocol, state, unaided)
        }),
        Check::sometimes(TAKEOVER, |_, state| {
            any_task(state, |task, session| is_stale(task, session) && session.row.owner.is_some())
        }),
        Check::sometimes(REFUSED_PUBLISH, |_, state| {
            state.sessions.iter().any(|session| session.wakes > 0 && session.token != Token::Absent)
        }),
        Check::sometimes(ZOMBIE_COMMIT, |_, state| {
            any_task(state, |task, session| matches!(task.phase, Phase::End(_)) && is_stale(task, session))
        }),
        Check::sometimes(INTERRUPTED_CALL, |_, state| {
            any_task(state, |task, _| matches!(task.phase, Phase::Interrupt(..)))
        }),
        Check::sometimes(HAND_OVER, |_, state| {
            let hands_over = |task: &Task| match task.phase {
                Phase::Release(grant) => {
                    let session = state.session(task.session);
                    !is_stale(task, session) && is_half_done(&session.runs[usize::from(grant.run)])
                }
                _ => false,
            };
            state
                .incarnations()
                .any(|incarnation| incarnation.draining && incarnation.tasks.iter().any(hands_over))
        }),
        Check::sometimes(ORPHAN_HEALED, |_, state| {
            let next = state.reconciler.todo.first();
            state.reconciler.replacing && next.is_some_and(|it| state.session(*it).token == Token::Orphan)
        }),
        Check::sometimes(DECLINED, |_, state| {
            any_task(state, |task, session| {
                let gives_back = matches!(task.phase, Phase::Release(_)) && !is_stale(task, session);
                gives_back && matches!(task.origin, Origin::Declined | Origin::ReclaimWithoutSlot)
            })
        }),
        Check::sometimes(RECLAIMED, |_, state| {
            any_task(state, |task, _| task.phase == Phase::Claim && task.origin != Origin::Token)
        }),
        Check::sometimes(SUPERSEDED, |_, state| {
            let overtakes = |incarnation: &Incarnation, task: &Task| {
                task.phase == Phase::Claim
                    && incarnation
                        .in_flight_grants
                        .iter()
                        .any(|in_flight_grant| in_flight_grant.session == task.session)
            };
            state
                .incarnations()
                .any(|incarnation| incarnation.tasks.iter().any(|task| overtakes(incarnation, task)))
        }),
    ]
}

fn each(state: &State, holds: impl Fn(SessionIndex, &Session) -> bool) -> bool {
    (0..).zip(&state.sessions).all(|(index, session)| holds(index, session))
}

fn any_task(state: &State, is: impl Fn(&Task, &Session) -> bool) -> bool {
    state.tasks().any(|task| is(task, state.session(task.session)))
}

fn starts_in_order(runs: &[Run]) -> bool {
    let started = |run: &Run| run.calls.iter().any(|call| call.started);
    let first_unfinished = runs.iter().position(|run| run.ends == 0).unwrap_or(runs.len());
    runs.iter().skip(first_unfinished + 1).all(|run| !started(run))
}

fn is_half_done(run: &Run) -> bool {
    let done = run.calls.iter().filter(|call| call.step == Step::Done).count();
    run.ends == 0 && done > 0 && done < run.calls.len()
}

/// Whether the task works under an old epoch.
fn is_stale(task: &Task, session: &Session) -> bool {
    task.phase.grant().is_some_and(|grant| grant.epoch != session.row.epoch)
}
