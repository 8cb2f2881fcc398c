//! The protocol as it is keeps every promise, whatever the order of events, within these bounds.

use std::time::Instant;

use remuda_model::{
    Call, Faults, Mutation, Protocol, Scope, StandBy,
    property::{
        DECLINED, HAND_OVER, INTERRUPTED_CALL, ORPHAN_HEALED, OVERTAKEN, OWN_CLAIMED, PROMISES,
        REFUSED_PUBLISH, TAKEOVER, ZOMBIE_COMMIT,
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
    let scope = Scope { stand_by: StandBy::SameProcess, turn: 1, slots: 2, ..Scope::one_session(3) };
    explore(scope, &[REFUSED_PUBLISH]);
}

#[test]
fn workers_stand_by_and_crash() {
    let faults = Faults { stalls: 1, crashes: 1, ..Faults::default() };
    let scope = Scope { stand_by: StandBy::SameProcess, ..Scope::one_session(2) };
    explore(scope.with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL]);
}

#[test]
fn workers_stand_by_and_drain() {
    let calls = vec![Call::Mutating, Call::Repeatable];
    let scope = Scope { stand_by: StandBy::SameProcess, calls, ..Scope::one_session(2) };
    explore(scope.with(Faults { drains: 1, ..Faults::default() }), &[HAND_OVER]);
}

/// What is granted with a submit is sent to its worker, which may be full by then.
fn sent(runs: u8) -> Scope {
    Scope { stand_by: StandBy::OverWire, ..Scope::one_session(runs) }
}

/// A grant under which a call is repeated without a word to the store.
fn sent_repeatable(runs: u8) -> Scope {
    Scope { calls: vec![Call::Repeatable], ..sent(runs) }
}

#[test]
fn grants_are_sent() {
    explore(sent(2), &[DECLINED, OVERTAKEN, REFUSED_PUBLISH]);
}

#[test]
fn grants_are_sent_of_calls_that_are_repeated() {
    explore(Scope { turn: 1, ..sent_repeatable(2) }, &[DECLINED, OVERTAKEN, REFUSED_PUBLISH]);
}

#[test]
fn grants_are_lost_and_late() {
    let faults = Faults { parcels: 2, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, OVERTAKEN, OWN_CLAIMED]);
}

/// Who hears late that a session is its own may have been granted it anew.
#[test]
fn a_grant_is_lost_and_its_worker_told_too_often() {
    let faults = Faults { parcels: 1, false_alarms: 1, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, OVERTAKEN, OWN_CLAIMED]);
}

#[test]
fn the_control_plane_crashes_with_grants_to_be_sent() {
    let faults = Faults { parcels: 1, plane_crashes: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, OVERTAKEN, OWN_CLAIMED]);
}

#[test]
fn a_grant_is_lost_and_the_store_does_not_answer() {
    let faults = Faults { parcels: 1, timeouts: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, OVERTAKEN, OWN_CLAIMED]);
}

#[test]
fn a_worker_drains_with_grants_on_their_way() {
    let faults = Faults { drains: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, OVERTAKEN]);
}

#[test]
fn a_worker_drains_and_is_told() {
    let faults = Faults { drains: 1, parcels: 1, false_alarms: 1, ..Faults::default() };
    explore(sent(1).with(faults), &[DECLINED, OWN_CLAIMED]);
}

#[test]
fn a_worker_crashes_with_grants_on_their_way() {
    let faults = Faults { crashes: 1, parcels: 1, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, OVERTAKEN, OWN_CLAIMED]);
}

#[test]
fn one_worker_stalls_and_one_crashes_with_a_grant_on_its_way() {
    let faults = Faults { stalls: 1, crashes: 1, parcels: 1, ..Faults::default() };
    explore(sent(1).with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL, DECLINED, OWN_CLAIMED]);
}

#[test]
fn a_worker_stalls_with_grants_on_their_way() {
    let faults = Faults { stalls: 1, parcels: 1, ..Faults::default() };
    explore(Scope { workers: 1, ..sent_repeatable(2) }.with(faults), &[TAKEOVER, DECLINED, OWN_CLAIMED]);
}

#[test]
fn grants_of_two_sessions_compete_for_slots() {
    let scope = Scope { runs: vec![1, 1], workers: 1, ..sent(1) };
    let faults = Faults { parcels: 1, false_alarms: 1, ..Faults::default() };
    explore(scope.with(faults), &[DECLINED, OWN_CLAIMED]);
}

/// A rule that no promise needs. The late ack removes the new owner's token, which that owner can do without; should it die,
/// the reconciler wakes the session.
#[test]
fn acking_after_a_loss_costs_no_promise() {
    let faults = Faults { stalls: 1, ..Faults::default() };
    let scope = Scope::one_session(2).with(faults).breaking(Mutation::AckAfterLoss);
    explore(Scope { folded: true, ..scope }, &[TAKEOVER, ZOMBIE_COMMIT]);
}
