//! Run and step rows.

use std::time::Duration;

use remuda_domain::{
    ControlPlaneId, Labels, Run, RunId, RunState, SessionId, TenantId,
    error::Result,
    run::{CancelRequest, Failure, ParkReason, Parked},
    step::Step,
};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{SessionSettings, TotalRow};
use crate::{
    error::{corrupt, json, parse},
    time::DbTime,
};

read_row! {
    /// A run, from `runs r` and `sessions s`.
    struct RunRow, run_columns {
        "r.id" => id: Uuid,
        "r.tenant_id" => tenant_id: Uuid,
        "r.session_id" => session_id: Uuid,
        "r.seq" => seq: i64,
        "r.state" => state: i16,
        "r.input" => input: String,
        "r.timeout_ms" => timeout_ms: i64,
        "r.attempts" => attempts: i32,
        "r.lost_attempts" => lost_attempts: i32,
        "r.created_at" => created_at: DbTime,
        "r.started_at" => started_at: Option<DbTime>,
        "r.finished_at" => finished_at: Option<DbTime>,
        "r.failure" => failure: Option<String>,
        "r.last_steps" => last_steps: Option<String>,
        "r.cancel_at" => cancel_at: Option<DbTime>,
        "r.cancel_reason" => cancel_reason: Option<String>,
        "r.cancel_delivered_at" => cancel_delivered_at: Option<DbTime>,
        "r.cancel_stopped_at" => cancel_stopped_at: Option<DbTime>,
        "r.parked" => parked: Option<String>,
        "r.parked_at" => parked_at: Option<DbTime>,
        "r.paused_ms" => paused_ms: i64,
        "r.worked_ms" => worked_ms: i64,
        "r.idempotency_key" => idempotency_key: Option<String>,
        "r.traceparent" => traceparent: Option<String>,
        "r.awaited_by" => awaited_by: Option<Uuid>,
        "r.labels" => labels: Option<String>,
        "r.parent_run" => parent_run: Option<Uuid>,
        "r.budget_id" => budget_id: Option<Uuid>,
        "r.model_calls" => model_calls: Option<i64>,
        "r.input_tokens" => input_tokens: Option<i64>,
        "r.output_tokens" => output_tokens: Option<i64>,
        "r.cached_tokens" => cached_tokens: Option<i64>,
        "r.cache_write_tokens" => cache_write_tokens: Option<i64>,
        "r.reasoning_tokens" => reasoning_tokens: Option<i64>,
        "r.cost_micros" => cost_micros: Option<i64>,
        "s.current_run" => current_run: Option<Uuid>,
        "s.current_started_at" => current_started_at: Option<DbTime>,
    }
}

written_row! {
    /// A run to insert.
    struct RunInsert in runs {
        Set id: Uuid => uuid,
        Set tenant_id: Uuid => uuid,
        Set session_id: Uuid => uuid,
        Set seq: i64 => bigint,
        Set state: i16 => smallint,
        Set input: String => text,
        Set timeout_ms: i64 => bigint,
        Set created_at: DbTime => timestamptz,
        Set idempotency_key: Option<String> => text,
        Set traceparent: Option<String> => text,
        Set parent_run: Option<Uuid> => uuid,
        Set budget_id: Option<Uuid> => uuid,
        Set awaited_by: Option<Uuid> => uuid,
        Set labels: Option<String> => text,
    }
}

impl RunInsert {
    /// The row of an accepted run. `covered_by` is the budget that covers it.
    pub(crate) fn new(run: &Run, covered_by: Option<Uuid>) -> Result<Self> {
        let Run {
            id,
            tenant,
            session,
            seq,
            state,
            input,
            timeout,
            created_at,
            parent,
            idempotency_key,
            traceparent,
            awaited_by,
            labels,
            // Not known before it starts.
            attempt: _,
            lost_attempts: _,
            started_at: _,
            finished_at: _,
            outcomes: _,
            answer: _,
            failure: _,
            cancel: _,
            parked: _,
            spent: _,
            paused: _,
            worked: _,
            // A row of its own.
            budget: _,
            stop_reason: _,
        } = run;
        Ok(Self {
            id: id.as_uuid(),
            tenant_id: tenant.as_uuid(),
            session_id: session.as_uuid(),
            seq: *seq,
            state: state.to_db(),
            input: json(input)?,
            timeout_ms: i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX),
            created_at: DbTime(*created_at),
            idempotency_key: idempotency_key.clone(),
            traceparent: traceparent.clone(),
            parent_run: parent.map(RunId::as_uuid),
            budget_id: covered_by,
            awaited_by: awaited_by.map(ControlPlaneId::as_uuid),
            labels: if labels.is_empty() { None } else { Some(json(labels)?) },
        })
    }
}

written_row! {
    /// The end of a run, which is no longer parked then.
    struct RunFinish in runs {
        Key id: Uuid => uuid,
        Guard session_id: Uuid => uuid,
        Set state: i16 => smallint,
        Keep started_at: Option<DbTime> => timestamptz,
        Set finished_at: DbTime => timestamptz,
        Set failure: Option<String> => text,
        Set last_steps: Option<String> => text,
        /// Attempts that end with the run: zero if no worker executed it.
        Add attempts: i32 => integer,
        Add lost_attempts: i32 => integer,
        Set cancel_stopped_at: Option<DbTime> => timestamptz,
        /// How long it had been parked when it ended.
        Add paused_ms: i64 => bigint,
    }
    set "parked = NULL, parked_at = NULL"
    // `+ 0` keeps the planners from walking the index of all live runs instead of looking these up.
    where "t.state + 0 < 10"
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
        let spent = TotalRow {
            model_calls: self.model_calls,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            cache_write_tokens: self.cache_write_tokens,
            reasoning_tokens: self.reasoning_tokens,
            cost_micros: self.cost_micros,
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
            stop_reason: None,
            failure,
            cancel,
            parked,
            parent: self.parent_run.map(RunId::from_uuid),
            spent: spent.into_total(),
            budget: None,
            paused: millis(self.paused_ms),
            worked: millis(self.worked_ms),
            idempotency_key: self.idempotency_key,
            traceparent: self.traceparent,
            awaited_by: self.awaited_by.map(ControlPlaneId::from_uuid),
            labels: labels(self.labels.as_deref())?,
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
    #[sqlx(flatten)]
    pub(crate) settings: SessionSettings,
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
        self.run.budget_id.is_some() || self.settings.session_budget.is_some()
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

/// Parses a run's labels; mostly it has none.
pub(crate) fn labels(text: Option<&str>) -> Result<Labels> {
    text.map_or_else(|| Ok(Labels::default()), |text| parse("labels", text))
}
