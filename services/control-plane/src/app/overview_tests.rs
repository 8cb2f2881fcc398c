use std::time::Duration;

use remuda_domain::{
    Pool, RunId, SessionId, WorkerId,
    budget::Amount,
    run::{ParkReason, Parked},
};
use remuda_store::PoolStats;

use super::*;

fn summary(state: RunState, owner: Owner) -> RunSummary {
    RunSummary {
        run: RunId::new(),
        session: SessionId::new(),
        session_name: None,
        pool: Pool::default(),
        kind: "tools",
        agent: None,
        state,
        parked: None,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        attempt: 0,
        lost_attempts: 0,
        owner,
        cancelling: false,
        ahead: 0,
        spent: Amount::default(),
        step: None,
    }
}

fn pool(workers: u32, busy: u32, draining: u32) -> PoolView {
    let stats = PoolStats {
        pool: Pool::default(),
        runnable_sessions: 1,
        running_sessions: 0,
        queued_runs: 1,
        workers,
        slots: 4 * workers,
        oldest_runnable_at: None,
    };
    PoolView { stats, parked_sessions: 0, busy, draining }
}

#[test]
fn each_state_has_its_reason() {
    let worker = WorkerId::new();
    let alive = Owner::Alive { worker, lease_left: Duration::from_secs(1) };
    let busy = pool(1, 4, 0);
    let reason = |summary: &RunSummary, pool: Option<&PoolView>| why(summary, pool).0;
    let running = summary(RunState::Running, alive);
    assert_eq!(reason(&running, Some(&busy)), "executing");
    assert_eq!(reason(&RunSummary { cancelling: true, ..running }, Some(&busy)), "cancelling");
    assert_eq!(reason(&summary(RunState::Running, Owner::Expired { worker }), None), "owner_lost");
    let queued = summary(RunState::Queued, Owner::Nobody);
    assert_eq!(why(&queued, Some(&busy)), ("waiting_for_worker", "all slots busy".to_owned()));
    assert_eq!(why(&queued, Some(&pool(1, 3, 0))).1, "about to be taken");
    assert_eq!(reason(&queued, None), "no_worker");
    assert_eq!(reason(&queued, Some(&pool(0, 1, 1))), "workers_draining");
    assert_eq!(reason(&summary(RunState::Queued, alive), Some(&busy)), "starting");
    let behind = RunSummary { ahead: 2, ..summary(RunState::Queued, alive) };
    assert_eq!(why(&behind, Some(&busy)), ("behind_other_runs", "behind 2 runs".to_owned()));
    let again = RunSummary { attempt: 1, ..queued };
    assert_eq!(reason(&again, Some(&busy)), "handed_over");
    assert_eq!(reason(&RunSummary { lost_attempts: 1, ..again }, Some(&busy)), "attempt_lost");
    let parked = Parked { reason: ParkReason::Budget, at: Timestamp::UNIX_EPOCH };
    let parked = RunSummary { parked: Some(parked), ..summary(RunState::Parked, Owner::Nobody) };
    assert_eq!(why(&parked, None), ("parked", "parked: budget".to_owned()));
}
