//! Explorations: the protocol upholds all invariants in every order of events, within these bounds.

use std::time::Instant;

use remuda_protocol_model::{
    Call, DirectGrants, Faults, Mutation, Protocol, Scope,
    property::{
        DECLINED, HAND_OVER, INTERRUPTED_CALL, INVARIANTS, ORPHAN_HEALED, RECLAIMED, REFUSED_PUBLISH,
        SUPERSEDED, TAKEOVER, ZOMBIE_COMMIT,
    },
};
use stateright::{Checker as _, Model as _};

/// Explores all states, and checks that all invariants hold and that the `reached` conditions are.
fn explore(scope: Scope, reached: &[&'static str]) {
    let begun = Instant::now();
    let checker = Protocol::new(scope, &[&INVARIANTS, reached].concat()).checker().spawn_bfs().join();
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
fn no_faults() {
    explore(Scope::one_session(3), &[REFUSED_PUBLISH]);
}

#[test]
fn session_is_released_after_each_run() {
    explore(Scope { max_consecutive_runs: 1, ..Scope::one_session(3) }, &[REFUSED_PUBLISH]);
}

#[test]
fn worker_gets_the_same_token_twice() {
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
fn worker_stalls_during_repeatable_calls() {
    let scope = Scope { calls: vec![Call::Repeatable], ..Scope::one_session(2) };
    explore(scope.with(Faults { stalls: 1, ..Faults::default() }), &[TAKEOVER, ZOMBIE_COMMIT]);
}

#[test]
fn broker_and_control_plane_fail() {
    let faults = Faults { wipes: 1, orphans: 1, timeouts: 1, plane_crashes: 1, ..Faults::default() };
    explore(Scope::one_session(2).with(faults), &[REFUSED_PUBLISH, ORPHAN_HEALED]);
}

#[test]
fn worker_stalls_and_broker_leaves_an_orphan() {
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

/// In one process, submits may grant: tokens and direct grants interleave.
#[test]
fn local_grants_with_release_after_each_run() {
    let scope = Scope {
        direct_grants: DirectGrants::SameProcess,
        max_consecutive_runs: 1,
        slots: 2,
        ..Scope::one_session(3)
    };
    explore(scope, &[REFUSED_PUBLISH]);
}

#[test]
fn local_grants_and_worker_crashes() {
    let faults = Faults { stalls: 1, crashes: 1, ..Faults::default() };
    let scope = Scope { direct_grants: DirectGrants::SameProcess, ..Scope::one_session(2) };
    explore(scope.with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL]);
}

#[test]
fn local_grants_and_a_drain() {
    let calls = vec![Call::Mutating, Call::Repeatable];
    let scope = Scope { direct_grants: DirectGrants::SameProcess, calls, ..Scope::one_session(2) };
    explore(scope.with(Faults { drains: 1, ..Faults::default() }), &[HAND_OVER]);
}

/// Grants are sent to workers over the network, which may be full by then.
fn sent(runs: u8) -> Scope {
    Scope { direct_grants: DirectGrants::OverNetwork, ..Scope::one_session(runs) }
}

/// A grant under which a call is repeated without asking the store.
fn sent_repeatable(runs: u8) -> Scope {
    Scope { calls: vec![Call::Repeatable], ..sent(runs) }
}

#[test]
fn remote_grants() {
    explore(sent(2), &[DECLINED, SUPERSEDED, REFUSED_PUBLISH]);
}

#[test]
fn remote_grants_of_repeatable_calls() {
    explore(
        Scope { max_consecutive_runs: 1, ..sent_repeatable(2) },
        &[DECLINED, SUPERSEDED, REFUSED_PUBLISH],
    );
}

#[test]
fn remote_grants_are_lost_and_late() {
    let faults = Faults { grant_faults: 2, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, SUPERSEDED, RECLAIMED]);
}

/// A worker that is signalled late may have been granted the session again.
#[test]
fn remote_grant_is_lost_and_a_false_alarm_is_sent() {
    let faults = Faults { grant_faults: 1, false_alarms: 1, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, SUPERSEDED, RECLAIMED]);
}

#[test]
fn control_plane_crashes_with_unsent_grants() {
    let faults = Faults { grant_faults: 1, plane_crashes: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, SUPERSEDED, RECLAIMED]);
}

#[test]
fn remote_grant_is_lost_and_a_request_times_out() {
    let faults = Faults { grant_faults: 1, timeouts: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, SUPERSEDED, RECLAIMED]);
}

#[test]
fn worker_drains_with_grants_in_flight() {
    let faults = Faults { drains: 1, ..Faults::default() };
    explore(sent(2).with(faults), &[DECLINED, SUPERSEDED]);
}

#[test]
fn worker_drains_and_is_signalled() {
    let faults = Faults { drains: 1, grant_faults: 1, false_alarms: 1, ..Faults::default() };
    explore(sent(1).with(faults), &[DECLINED, RECLAIMED]);
}

#[test]
fn worker_crashes_with_grants_in_flight() {
    let faults = Faults { crashes: 1, grant_faults: 1, ..Faults::default() };
    explore(sent_repeatable(2).with(faults), &[DECLINED, SUPERSEDED, RECLAIMED]);
}

#[test]
fn one_worker_stalls_and_one_crashes_with_a_grant_in_flight() {
    let faults = Faults { stalls: 1, crashes: 1, grant_faults: 1, ..Faults::default() };
    explore(sent(1).with(faults), &[TAKEOVER, ZOMBIE_COMMIT, INTERRUPTED_CALL, DECLINED, RECLAIMED]);
}

#[test]
fn worker_stalls_with_grants_in_flight() {
    let faults = Faults { stalls: 1, grant_faults: 1, ..Faults::default() };
    explore(Scope { workers: 1, ..sent_repeatable(2) }.with(faults), &[TAKEOVER, DECLINED, RECLAIMED]);
}

#[test]
fn grants_of_two_sessions_compete_for_slots() {
    let scope = Scope { runs: vec![1, 1], workers: 1, ..sent(1) };
    let faults = Faults { grant_faults: 1, false_alarms: 1, ..Faults::default() };
    explore(scope.with(faults), &[DECLINED, RECLAIMED]);
}

/// A rule that no invariant needs. The late ack removes the new owner's token, which that owner does not need; if it
/// dies, the reconciler wakes the session.
#[test]
fn ack_after_a_loss_violates_no_invariant() {
    let faults = Faults { stalls: 1, ..Faults::default() };
    let scope = Scope::one_session(2).with(faults).breaking(Mutation::AckAfterLoss);
    explore(Scope { symmetry_reduction: true, ..scope }, &[TAKEOVER, ZOMBIE_COMMIT]);
}
