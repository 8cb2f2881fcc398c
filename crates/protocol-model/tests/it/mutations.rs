//! Mutations: each broken rule violates an invariant, and the checker finds how.

use remuda_protocol_model::{
    Call, DirectGrants, Faults, Mutation, Protocol, Scope,
    property::{
        NO_REPEATED_CALL, NO_RUN_LOST, NO_TOOL_OUTLIVES_ITS_LEASE, NO_WAKE_UP_LOST, ONE_END,
        ONE_TOOL_AT_A_TIME, ONLY_OWNERS_COMMIT, SUBMISSION_ORDER,
    },
};
use stateright::{Checker as _, Model as _};

/// More than any of these searches needs. Some mutations make the state space infinite.
const MAX_STATES: usize = 2_000_000;

/// Length of the shortest path to a violation of the invariant, or `None` if there is none within the scope.
fn shortest_violation(scope: &Scope, invariant: &'static str) -> Option<usize> {
    let checker = Protocol::new(scope.clone(), &[invariant]).checker().target_state_count(MAX_STATES);
    let checker = checker.spawn_bfs().join();
    let violation = checker.discovery(invariant).map(|path| path.into_actions());
    assert!(violation.is_some() || checker.state_count() < MAX_STATES, "the search was aborted");
    println!("{:?} breaks \"{invariant}\": {violation:?}", scope.mutation);
    violation.map(|actions| actions.len())
}

/// The mutation violates the invariant in this many steps, also with symmetry reduction as in the explorations that
/// pass.
#[track_caller]
fn violates(scope: Scope, mutation: Mutation, invariant: &'static str, steps: usize) {
    assert_eq!(shortest_violation(&scope.clone().breaking(mutation), invariant), Some(steps));
    let symmetry_reduction = Scope { mutation: Some(mutation), ..scope };
    assert_eq!(shortest_violation(&symmetry_reduction, invariant), Some(steps));
}

fn quiet() -> Scope {
    Scope::one_session(2)
}

/// Grants are sent over the network. Their calls start without asking the store.
fn sent(runs: u8) -> Scope {
    Scope {
        direct_grants: DirectGrants::OverNetwork,
        calls: vec![Call::Repeatable],
        ..Scope::one_session(runs)
    }
}

fn stalled() -> Scope {
    quiet().with(Faults { stalls: 1, ..Faults::default() })
}

fn crashed() -> Scope {
    quiet().with(Faults { crashes: 1, ..Faults::default() })
}

#[test]
fn recheck_before_the_ack_loses_wake_ups() {
    violates(quiet(), Mutation::RecheckBeforeAck, NO_WAKE_UP_LOST, 12);
}

/// The reconciler compensates, so the run is late rather than lost, and this invariant alone would not have shown it.
#[test]
fn recheck_before_the_ack_loses_no_run() {
    let scope = Scope { symmetry_reduction: true, ..quiet().breaking(Mutation::RecheckBeforeAck) };
    assert_eq!(shortest_violation(&scope, NO_RUN_LOST), None);
}

#[test]
fn release_of_a_direct_grant_without_a_recheck_loses_wake_ups() {
    let scope = Scope { direct_grants: DirectGrants::SameProcess, max_consecutive_runs: 1, ..quiet() };
    violates(scope, Mutation::NoRecheckWithoutToken, NO_WAKE_UP_LOST, 2);
}

#[test]
fn without_the_epoch_check_zombies_commit() {
    violates(stalled(), Mutation::NoEpochCheck, ONLY_OWNERS_COMMIT, 11);
}

/// A commit also has to name the current run, so even then no run ends twice.
#[test]
fn without_the_epoch_check_runs_still_end_once() {
    let scope = Scope { symmetry_reduction: true, ..stalled().breaking(Mutation::NoEpochCheck) };
    assert_eq!(shortest_violation(&scope, ONE_END), None);
}

#[test]
fn unchecked_commits_end_runs_twice() {
    violates(stalled(), Mutation::UncheckedCommit, ONE_END, 15);
}

#[test]
fn granting_the_newest_run_violates_submission_order() {
    violates(quiet(), Mutation::NewestFirst, SUBMISSION_ORDER, 7);
}

#[test]
fn claim_over_a_live_lease_runs_two_tools_at_once() {
    violates(quiet(), Mutation::ClaimOverLiveLease, ONE_TOOL_AT_A_TIME, 14);
}

#[test]
fn session_active_twice_runs_two_tools_at_once() {
    let scope = Scope { slots: 2, workers: 1, ..quiet() };
    violates(scope.clone(), Mutation::NoSessionGuard, ONE_TOOL_AT_A_TIME, 13);
    violates(scope, Mutation::NoSessionGuard, NO_REPEATED_CALL, 9);
}

#[test]
fn without_the_sweep_a_crash_before_the_publish_loses_a_run() {
    let faults = Faults { plane_crashes: 1, ..Faults::default() };
    violates(quiet().with(faults), Mutation::NoSweep, NO_RUN_LOST, 2);
}

#[test]
fn without_the_sweep_a_wipe_loses_a_run() {
    let faults = Faults { wipes: 1, ..Faults::default() };
    violates(quiet().with(faults), Mutation::NoSweep, NO_RUN_LOST, 3);
}

#[test]
fn without_orphan_repair_an_orphan_loses_a_run() {
    let faults = Faults { orphans: 1, ..Faults::default() };
    violates(quiet().with(faults), Mutation::NoOrphanRepair, NO_RUN_LOST, 11);
}

#[test]
fn without_the_self_fence_a_takeover_runs_two_tools_at_once() {
    violates(crashed(), Mutation::NoSelfFence, NO_TOOL_OUTLIVES_ITS_LEASE, 8);
    violates(crashed(), Mutation::NoSelfFence, ONE_TOOL_AT_A_TIME, 16);
}

#[test]
fn start_without_the_guards_permission_runs_two_tools_at_once() {
    violates(stalled(), Mutation::UngatedStart, ONE_TOOL_AT_A_TIME, 17);
    violates(stalled(), Mutation::UngatedStart, NO_REPEATED_CALL, 13);
}

#[test]
fn without_redelivery_a_lost_grant_loses_a_run() {
    let faults = Faults { grant_faults: 1, ..Faults::default() };
    violates(sent(1).with(faults), Mutation::NoRedelivery, NO_RUN_LOST, 2);
}

#[test]
fn sign_off_with_a_grant_in_flight_loses_wake_ups() {
    let faults = Faults { drains: 1, ..Faults::default() };
    violates(sent(1).with(faults), Mutation::NoWaitForLastGrants, NO_WAKE_UP_LOST, 3);
}

#[test]
fn decline_without_a_recheck_loses_wake_ups() {
    let faults = Faults { drains: 1, ..Faults::default() };
    violates(sent(1).with(faults), Mutation::NoRecheckWithoutToken, NO_WAKE_UP_LOST, 2);
}

#[test]
fn executing_late_grants_repeats_calls_and_runs_two_tools_at_once() {
    let faults = Faults { grant_faults: 1, ..Faults::default() };
    violates(sent(1).with(faults.clone()), Mutation::ExecuteLateGrants, NO_REPEATED_CALL, 10);
    violates(sent(2).with(faults), Mutation::ExecuteLateGrants, ONE_TOOL_AT_A_TIME, 13);
}

/// This needs no fault and no signal: a leftover token is enough.
#[test]
fn executing_superseded_grants_repeats_calls() {
    violates(sent(2), Mutation::ExecuteSupersededGrants, NO_REPEATED_CALL, 17);
}

#[test]
fn executing_superseded_grants_runs_two_tools_at_once() {
    let faults = Faults { false_alarms: 1, ..Faults::default() };
    violates(sent(2).with(faults), Mutation::ExecuteSupersededGrants, ONE_TOOL_AT_A_TIME, 20);
}

/// They are announced first, which the store rejects.
#[test]
fn executing_superseded_grants_repeats_no_call_with_side_effects() {
    let scope = Scope { calls: vec![Call::Mutating], ..sent(2) }.breaking(Mutation::ExecuteSupersededGrants);
    assert_eq!(shortest_violation(&Scope { symmetry_reduction: true, ..scope }, NO_REPEATED_CALL), None);
}
