//! Run and step rows.

use std::time::Duration;

use remuda_domain::{
    ControlPlaneId, Run, RunId, RunState, SessionId, TenantId,
    error::Result,
    run::{CancelRequest, Failure, ParkReason, Parked},
    step::Step,
};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::TotalRow;
use crate::{
    error::{corrupt, parse},
    time::DbTime,
};

#[derive(Clone, Debug, FromRow)]
pub(crate) struct RunRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: Uuid,
    pub(crate) session_id: Uuid,
    seq: i64,
    state: i16,
    input: String,
    timeout_ms: i64,
    attempts: i32,
    lost_attempts: i32,
    created_at: DbTime,
    started_at: Option<DbTime>,
    finished_at: Option<DbTime>,
    failure: Option<String>,
    last_steps: Option<String>,
    cancel_at: Option<DbTime>,
    cancel_reason: Option<String>,
    cancel_delivered_at: Option<DbTime>,
    cancel_stopped_at: Option<DbTime>,
    parked: Option<String>,
    parked_at: Option<DbTime>,
    paused_ms: i64,
    idempotency_key: Option<String>,
    traceparent: Option<String>,
    awaited_by: Option<Uuid>,
    pub(crate) parent_run: Option<Uuid>,
    pub(crate) budget_id: Option<Uuid>,
    #[sqlx(flatten)]
    spent: TotalRow,
    pub(crate) current_run: Option<Uuid>,
    pub(crate) current_started_at: Option<DbTime>,
}

impl RunRow {
    /// Whether it has its own budget.
    pub(crate) fn has_budget(&self) -> bool {
        self.budget_id == Some(self.id)
    }

    /// Converts to a run without its outcomes, which are in its steps, and without its budget, which is a separate row.
    pub(crate) fn into_run(self) -> Result<Run> {
        let stored = RunState::from_db(self.state).ok_or_else(|| corrupt("run state"))?;
        let is_current = self.current_run == Some(self.id);
        let state = if stored == RunState::Queued && is_current { RunState::Running } else { stored };
        let started_at = self.started_at.or(if is_current { self.current_started_at } else { None });
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let millis = |number: i64| Duration::from_millis(u64::try_from(number).unwrap_or(0));
        let failure = self.failure.as_deref().map(|text| parse::<Failure>("failure", text)).transpose()?;
        let cancel = self.cancel_at.map(|at| CancelRequest {
            at: at.0,
            reason: self.cancel_reason.unwrap_or_default(),
            delivered_at: self.cancel_delivered_at.map(|at| at.0),
            stopped_at: self.cancel_stopped_at.map(|at| at.0),
        });
        let parked = match (self.parked.as_deref(), self.parked_at) {
            (Some(reason), Some(at)) => Some(Parked {
                reason: ParkReason::parse(reason).ok_or_else(|| corrupt("park reason"))?,
                at: at.0,
            }),
            _ => None,
        };
        Ok(Run {
            id: RunId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            session: SessionId::from_uuid(self.session_id),
            seq: self.seq,
            state,
            input: parse("input", &self.input)?,
            timeout: millis(self.timeout_ms),
            attempt: count(self.attempts) + u32::from(is_current),
            lost_attempts: count(self.lost_attempts),
            created_at: self.created_at.0,
            started_at: started_at.map(|at| at.0),
            finished_at: self.finished_at.map(|at| at.0),
            outcomes: Vec::new(),
            answer: None,
            failure,
            cancel,
            parked,
            parent: self.parent_run.map(RunId::from_uuid),
            spent: self.spent.into_total(),
            budget: None,
            paused: millis(self.paused_ms),
            idempotency_key: self.idempotency_key,
            traceparent: self.traceparent,
            awaited_by: self.awaited_by.map(ControlPlaneId::from_uuid),
        })
    }

    /// Whether it is queued, was never attempted or cancelled, and has neither a parent nor a budget.
    pub(crate) fn is_untouched(&self) -> bool {
        let queued = self.state == RunState::Queued.to_db() && self.attempts == 0;
        queued && self.cancel_at.is_none() && self.parent_run.is_none() && self.budget_id.is_none()
    }

    pub(crate) fn last_steps(&self) -> Result<Vec<Step>> {
        self.last_steps.as_deref().map_or_else(|| Ok(Vec::new()), |text| parse("steps", text))
    }
}

/// The first unfinished run of a session, with the session's settings.
#[derive(Debug, FromRow)]
pub(crate) struct HeadRunRow {
    #[sqlx(flatten)]
    pub(crate) run: RunRow,
    pub(crate) root: String,
    pub(crate) execution: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) permissions: Option<String>,
    pub(crate) depth: i32,
    pub(crate) session_budget: Option<Uuid>,
}

#[derive(Debug, FromRow)]
pub(crate) struct StepRow {
    pub(crate) run_id: Uuid,
    pub(crate) step: String,
}

impl HeadRunRow {
    pub(crate) fn id(&self) -> RunId {
        RunId::from_uuid(self.run.id)
    }

    /// Whether a budget covers it.
    pub(crate) fn is_budgeted(&self) -> bool {
        self.run.budget_id.is_some() || self.session_budget.is_some()
    }

    /// Whether it was never attempted, and so has no steps.
    pub(crate) fn is_untried(&self) -> bool {
        self.run.attempts == 0
    }

    /// Whether a worker could execute it now, that is, it is not parked.
    pub(crate) fn is_runnable(&self) -> bool {
        self.run.state == RunState::Queued.to_db()
    }
}
