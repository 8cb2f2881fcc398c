//! The protocol as it is keeps every promise, whatever the order of events, within these bounds.

use std::time::Instant;

use remuda_model::{
    Call, Faults, Mutation, Protocol, Scope,
    property::{
        HAND_OVER, INTERRUPTED_CALL, ORPHAN_HEALED, PROMISES, REFUSED_PUBLISH, TAKEOVER, ZOMBIE_COMMIT,
    },
};
use stateright::{Checker as _, Model as _};

/// Explores everything, and checks that all promises hold and that what is to be `reached` is.
fn explore(scope: Scope, reached: &[&'static str]) {
    let begun = Instant::now();
    let checker = Protocol::new(scope, &[&PROMISES, reached].concat()).checker().spawn_bfs().join();
    println!(
        "{} states by {} steps, at most {} deep, in {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed()
    );
    assert!(checker.is_done(), "the exploration was not finished");
    checker.assert_properties();
}

#[test]
fn nothing_breaks() {
    explore(Scope::one_session(3), &[REFUSED_PUBLISH]);
}

#[test]
fn every_run_is_a_turn_of_its_own() {
    explore(Scope { turn: 1, ..Scope::one_session(3) }, &[REFUSED_PUBLISH]);
}

#[test]
fn a_worker_is_given_the_same_token_twice() {
    explore(Scope { slots: 2, ..Scope::one_session(2) }, &[REFUSED_PUBLISH]);
}

#[test]
fn workers_crash() {
    let faults = Faults { crashes: 2, ..Faults::default() };
    explore(Scope::one_session(2).with(faults), &[INTERRUPTED_CALL]);
}

#[test]
fn one_worker_stalls_and_one_crashes() {
    let faults = Faults { stalls: 1, crashes: 1, ..Faults::default() };
    explore(Scope::one_session(2).with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL]);
}

#[test]
fn a_worker_stalls_over_calls_that_are_repeated() {
    let scope = Scope { calls: vec![Call::Repeatable], ..Scope::one_session(2) };
    explore(scope.with(Faults { stalls: 1, ..Faults::default() }), &[TAKEOVER, ZOMBIE_COMMIT]);
}

#[test]
fn the_broker_and_the_control_plane_fail() {
    let faults = Faults { wipes: 1, orphans: 1, timeouts: 1, plane_crashes: 1, ..Faults::default() };
    explore(Scope::one_session(2).with(faults), &[REFUSED_PUBLISH, ORPHAN_HEALED]);
}

#[test]
fn a_worker_stalls_and_the_broker_leaves_an_orphan() {
    let faults = Faults { stalls: 1, orphans: 1, ..Faults::default() };
    explore(Scope::one_session(2).with(faults), &[TAKEOVER, ZOMBIE_COMMIT, ORPHAN_HEALED]);
}

#[test]
fn one_worker_drains_and_one_crashes() {
    let scope = Scope { calls: vec![Call::Mutating, Call::Repeatable], ..Scope::one_session(2) };
    let faults = Faults { drains: 1, crashes: 1, ..Faults::default() };
    explore(scope.with(faults), &[HAND_OVER, INTERRUPTED_CALL]);
}

#[test]
fn two_sessions_share_the_workers() {
    let scope = Scope { runs: vec![1, 1], ..Scope::one_session(1) };
    explore(scope.with(Faults { crashes: 1, ..Faults::default() }), &[INTERRUPTED_CALL]);
}

/// In one process, whoever submits may grant: tokens and grants without tokens come between each other.
#[test]
fn workers_stand_by_and_give_up_after_each_run() {
    let scope = Scope { stand_by: true, turn: 1, slots: 2, ..Scope::one_session(3) };
    explore(scope, &[REFUSED_PUBLISH]);
}

#[test]
fn workers_stand_by_and_crash() {
    let faults = Faults { stalls: 1, crashes: 1, ..Faults::default() };
    let scope = Scope { stand_by: true, ..Scope::one_session(2) };
    explore(scope.with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL]);
}

#[test]
fn workers_stand_by_and_drain() {
    let calls = vec![Call::Mutating, Call::Repeatable];
    let scope = Scope { stand_by: true, calls, ..Scope::one_session(2) };
    explore(scope.with(Faults { drains: 1, ..Faults::default() }), &[HAND_OVER]);
}

/// A rule that no promise needs. The late ack removes the new owner's token, which that owner can do without; should it die,
/// the reconciler wakes the session.
#[test]
fn acking_after_a_loss_costs_no_promise() {
    let faults = Faults { stalls: 1, ..Faults::default() };
    let scope = Scope::one_session(2).with(faults).breaking(Mutation::AckAfterLoss);
    explore(Scope { folded: true, ..scope }, &[TAKEOVER, ZOMBIE_COMMIT]);
}
