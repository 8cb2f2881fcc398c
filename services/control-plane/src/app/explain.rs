//! Why is this run not finished?

use remuda_domain::{RunId, RunState, error::Result, identity::Principal, session::Owner};
use remuda_store::Situation;

use super::App;

/// The answer, for programs (`reason`) and for people (`message`, `hint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub state: RunState,
    pub reason: &'static str,
    pub message: String,
    /// A run, a worker or a pool.
    pub waits_for: String,
    pub position: i64,
    pub hint: String,
}

impl App {
    pub async fn explain(&self, caller: &Principal, run: RunId) -> Result<Explanation> {
        Ok(explain(&self.store.situation(caller.tenant, run).await?))
    }
}

fn explain(situation: &Situation) -> Explanation {
    let Situation { run, head, ahead, blocked_by, workers, free_slots } = situation;
    let answer = |reason, message: String, waits_for: String, hint: &str| Explanation {
        state: run.state,
        reason,
        message,
        waits_for,
        position: *ahead,
        hint: hint.to_owned(),
    };
    let pool = &head.pool;
    match run.state {
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut => {
            let cause =
                run.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
            answer("finished", format!("the run is {}{cause}", run.state), String::new(), "")
        }
        RunState::Parked => answer("parked", "the run waits for something outside".into(), String::new(), ""),
        RunState::Running => match head.owner {
            Owner::Alive { worker, .. } if run.cancel.is_some() => answer(
                "cancelling",
                format!("worker {worker} was asked to stop the run"),
                worker.to_string(),
                "",
            ),
            Owner::Alive { worker, .. } => {
                answer("executing", format!("worker {worker} executes the run"), worker.to_string(), "")
            }
            Owner::Expired { worker } => answer(
                "owner_lost",
                format!("worker {worker} was lost; another one will continue the run"),
                pool.to_string(),
                if *workers == 0 { "start a worker: remuda worker" } else { "" },
            ),
            Owner::Nobody => answer(
                "waiting_for_worker",
                "the run was handed over and waits for another worker".into(),
                pool.to_string(),
                "",
            ),
        },
        RunState::Queued if *ahead > 0 => {
            let next = blocked_by.map(|run| run.to_string()).unwrap_or_default();
            let runs = if *ahead == 1 { "1 run is".to_owned() } else { format!("{ahead} runs are") };
            answer("behind_other_runs", format!("{runs} ahead of it in its session"), next, "")
        }
        RunState::Queued if *workers == 0 => answer(
            "no_worker",
            format!("no worker of the pool {pool} is alive"),
            pool.to_string(),
            "start a worker for the pool: remuda worker",
        ),
        RunState::Queued if *free_slots == 0 => answer(
            "waiting_for_worker",
            format!("all slots of the {workers} workers in the pool {pool} are busy"),
            pool.to_string(),
            "add workers or slots, or wait",
        ),
        RunState::Queued => answer(
            "waiting_for_worker",
            format!("a worker of the pool {pool} should take it any moment"),
            pool.to_string(),
            "",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use remuda_domain::{
        Head, Pool, Run, RunInput, SessionId, TenantId, WorkerId,
        run::{CancelRequest, ToolsInput},
    };

    use super::*;

    fn situation(state: RunState, owner: Owner) -> Situation {
        let (tenant, session) = (TenantId::new(), SessionId::new());
        let at = "2026-01-01T00:00:00Z".parse().unwrap();
        let run = Run {
            id: RunId::new(),
            tenant,
            session,
            seq: 1,
            state,
            input: RunInput::Tools(ToolsInput { calls: vec![], continue_on_error: false, record: false }),
            timeout: Duration::from_secs(1),
            attempt: 1,
            created_at: at,
            started_at: None,
            finished_at: None,
            outcomes: vec![],
            failure: None,
            cancel: None,
            idempotency_key: None,
            traceparent: None,
        };
        let head = Head {
            tenant,
            session,
            pool: Pool::default(),
            closed: false,
            epoch: 1,
            owner,
            current: None,
            pending: 1,
            last_seq: 1,
            last_cursor: 1,
        };
        Situation { run, head, ahead: 0, blocked_by: None, workers: 1, free_slots: 1 }
    }

    #[test]
    fn every_situation_has_its_reason() {
        let worker = WorkerId::new();
        let alive = Owner::Alive { worker, lease_left: Duration::from_secs(1) };
        let reason = |situation: &Situation| explain(situation).reason;
        assert_eq!(reason(&situation(RunState::Completed, Owner::Nobody)), "finished");
        assert_eq!(reason(&situation(RunState::Running, alive)), "executing");
        assert_eq!(reason(&situation(RunState::Running, Owner::Expired { worker })), "owner_lost");
        assert_eq!(reason(&situation(RunState::Parked, Owner::Nobody)), "parked");
        assert_eq!(reason(&situation(RunState::Queued, Owner::Nobody)), "waiting_for_worker");
        let mut cancelling = situation(RunState::Running, alive);
        cancelling.run.cancel = Some(CancelRequest { at: cancelling.run.created_at, reason: String::new() });
        assert_eq!(reason(&cancelling), "cancelling");
        let mut behind = situation(RunState::Queued, alive);
        behind.ahead = 3;
        behind.blocked_by = Some(RunId::new());
        let answer = explain(&behind);
        assert_eq!((answer.reason, answer.position), ("behind_other_runs", 3));
        assert_eq!(answer.waits_for, behind.blocked_by.unwrap().to_string());
        let mut lonely = situation(RunState::Queued, Owner::Nobody);
        lonely.workers = 0;
        assert_eq!(reason(&lonely), "no_worker");
        assert!(explain(&lonely).hint.contains("remuda worker"));
    }
}
