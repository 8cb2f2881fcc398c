//! Each rule, once broken, is missed: the checker finds how.

use remuda_model::{
    Call, Faults, Mutation, Protocol, Scope, StandBy,
    property::{
        NO_REPEATED_CALL, NO_RUN_LOST, NO_TOOL_OUTLIVES_ITS_LEASE, NO_WAKE_UP_LOST, ONE_END,
        ONE_TOOL_AT_A_TIME, ONLY_OWNERS_COMMIT, SUBMISSION_ORDER,
    },
};
use stateright::{Checker as _, Model as _};

/// More than any of these searches needs. Some broken protocols have no end of states.
const MAX_STATES: usize = 2_000_000;

/// The length of the shortest way to break a promise, or `None` if it cannot be broken within the scope.
fn shortest_breach(scope: &Scope, promise: &'static str) -> Option<usize> {
    let checker = Protocol::new(scope.clone(), &[promise]).checker().target_state_count(MAX_STATES);
    let checker = checker.spawn_bfs().join();
    let breach = checker.discovery(promise).map(|path| path.into_actions());
    assert!(breach.is_some() || checker.state_count() < MAX_STATES, "the search was given up");
    println!("{:?} breaks \"{promise}\": {breach:?}", scope.mutation);
    breach.map(|actions| actions.len())
}

/// Breaking a rule breaks the promise in this many steps, also when states are folded as in the explorations that pass.
#[track_caller]
fn breaks(scope: Scope, mutation: Mutation, promise: &'static str, steps: usize) {
    assert_eq!(shortest_breach(&scope.clone().breaking(mutation), promise), Some(steps));
    let folded = Scope { mutation: Some(mutation), ..scope };
    assert_eq!(shortest_breach(&folded, promise), Some(steps));
}

fn quiet() -> Scope {
    Scope::one_session(2)
}

/// What is granted with a submit is sent to its worker. Its calls start without a word to the store.
fn sent(runs: u8) -> Scope {
    Scope { stand_by: StandBy::OverWire, calls: vec![Call::Repeatable], ..Scope::one_session(runs) }
}

fn stalled() -> Scope {
    quiet().with(Faults { stalls: 1, ..Faults::default() })
}

fn crashed() -> Scope {
    quiet().with(Faults { crashes: 1, ..Faults::default() })
}

#[test]
fn looking_before_the_ack_loses_wake_ups() {
    breaks(quiet(), Mutation::LookBeforeAck, NO_WAKE_UP_LOST, 12);
}

/// The reconciler makes up for it, so the run is late rather than lost, and this promise alone would not have told.
#[test]
fn looking_before_the_ack_loses_no_run() {
    let scope = Scope { folded: true, ..quiet().breaking(Mutation::LookBeforeAck) };
    assert_eq!(shortest_breach(&scope, NO_RUN_LOST), None);
}

#[test]
fn giving_up_what_was_handed_without_a_look_loses_wake_ups() {
    let scope = Scope { stand_by: StandBy::SameProcess, turn: 1, ..quiet() };
    breaks(scope, Mutation::NoLookWithoutToken, NO_WAKE_UP_LOST, 2);
}

#[test]
fn without_the_epoch_check_zombies_commit() {
    breaks(stalled(), Mutation::NoEpochCheck, ONLY_OWNERS_COMMIT, 11);
}

/// A commit has to name the current run as well, so even then no run ends twice.
#[test]
fn without_the_epoch_check_runs_still_end_once() {
    let scope = Scope { folded: true, ..stalled().breaking(Mutation::NoEpochCheck) };
    assert_eq!(shortest_breach(&scope, ONE_END), None);
}

#[test]
fn unchecked_commits_end_runs_twice() {
    breaks(stalled(), Mutation::UncheckedCommit, ONE_END, 15);
}

#[test]
fn handing_out_the_newest_run_breaks_the_order() {
    breaks(quiet(), Mutation::NewestFirst, SUBMISSION_ORDER, 7);
}

#[test]
fn claiming_over_a_live_lease_overlaps() {
    breaks(quiet(), Mutation::ClaimOverLiveLease, ONE_TOOL_AT_A_TIME, 14);
}

#[test]
fn a_session_in_hand_twice_overlaps() {
    let scope = Scope { slots: 2, workers: 1, ..quiet() };
    breaks(scope.clone(), Mutation::NoHold, ONE_TOOL_AT_A_TIME, 13);
    breaks(scope, Mutation::NoHold, NO_REPEATED_CALL, 9);
}

#[test]
fn without_the_sweep_a_crash_before_the_publish_loses_a_run() {
    let faults = Faults { plane_crashes: 1, ..Faults::default() };
    breaks(quiet().with(faults), Mutation::NoSweep, NO_RUN_LOST, 2);
}

#[test]
fn without_the_sweep_a_wipe_loses_a_run() {
    let faults = Faults { wipes: 1, ..Faults::default() };
    breaks(quiet().with(faults), Mutation::NoSweep, NO_RUN_LOST, 3);
}

#[test]
fn without_the_healer_an_orphan_loses_a_run() {
    let faults = Faults { orphans: 1, ..Faults::default() };
    breaks(quiet().with(faults), Mutation::NoHealer, NO_RUN_LOST, 11);
}

#[test]
fn without_the_self_fence_a_takeover_overlaps() {
    breaks(crashed(), Mutation::NoSelfFence, NO_TOOL_OUTLIVES_ITS_LEASE, 8);
    breaks(crashed(), Mutation::NoSelfFence, ONE_TOOL_AT_A_TIME, 16);
}

#[test]
fn starting_without_the_guards_word_overlaps() {
    breaks(stalled(), Mutation::UngatedStart, ONE_TOOL_AT_A_TIME, 17);
    breaks(stalled(), Mutation::UngatedStart, NO_REPEATED_CALL, 13);
}

#[test]
fn without_telling_a_lost_grant_loses_a_run() {
    let faults = Faults { parcels: 1, ..Faults::default() };
    breaks(sent(1).with(faults), Mutation::NoTelling, NO_RUN_LOST, 2);
}

#[test]
fn signing_off_with_a_grant_on_its_way_loses_wake_ups() {
    let faults = Faults { drains: 1, ..Faults::default() };
    breaks(sent(1).with(faults), Mutation::NoLastParcels, NO_WAKE_UP_LOST, 3);
}

#[test]
fn declining_without_a_look_loses_wake_ups() {
    let faults = Faults { drains: 1, ..Faults::default() };
    breaks(sent(1).with(faults), Mutation::NoLookWithoutToken, NO_WAKE_UP_LOST, 2);
}

#[test]
fn executing_late_grants_repeats_calls_and_overlaps() {
    let faults = Faults { parcels: 1, ..Faults::default() };
    breaks(sent(1).with(faults.clone()), Mutation::TakeLateParcels, NO_REPEATED_CALL, 10);
    breaks(sent(2).with(faults), Mutation::TakeLateParcels, ONE_TOOL_AT_A_TIME, 13);
}

/// Nothing has to be lost for that, nor anybody told: a token that was left over is enough.
#[test]
fn executing_overtaken_grants_repeats_calls() {
    breaks(sent(2), Mutation::TakeOvertakenParcels, NO_REPEATED_CALL, 17);
}

#[test]
fn executing_overtaken_grants_overlaps() {
    let faults = Faults { false_alarms: 1, ..Faults::default() };
    breaks(sent(2).with(faults), Mutation::TakeOvertakenParcels, ONE_TOOL_AT_A_TIME, 20);
}

/// They are announced first, which the store refuses.
#[test]
fn executing_overtaken_grants_repeats_no_call_with_side_effects() {
    let scope = Scope { calls: vec![Call::Mutating], ..sent(2) }.breaking(Mutation::TakeOvertakenParcels);
    assert_eq!(shortest_breach(&Scope { folded: true, ..scope }, NO_REPEATED_CALL), None);
}
