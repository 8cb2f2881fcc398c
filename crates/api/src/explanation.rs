//! Explanations why a run has not ended.

use remuda_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    json_value::{list, millis, text, time},
    run::RunState,
    spending::{Amount, Budget},
};

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Explanation {
    pub run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// `finished`, `executing`, `worker_silent`, `cancelling`, `behind_other_runs`, `starting`, `waiting_for_worker`,
    /// `no_worker`, `workers_draining`, `wake_up_due`, `owner_lost`, `attempt_lost`, `handed_over`, `parked`,
    /// `resuming` or `model_retry`.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// Id of the run or worker, or name of the pool, that the run waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Number of unfinished runs ahead of it in its session.
    pub position: i64,
    /// What a person can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Progress of a cancellation request, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub receipts: Vec<Receipt>,
    /// What a parked run waits for; at most 50 items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub waits: Vec<Wait>,
    /// Position of its session in the pool, if a worker could take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<QueuePlace>,
    /// When the run entered its state: submitted, started, parked or finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// The latest step of a run that has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepGlance>,
    /// When the run starts, resumes or ends. Omitted for a finished run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
}

/// The position of a session among those of its pool that a worker could take.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct QueuePlace {
    pub pool: String,
    /// Sessions before this one.
    pub ahead: i64,
    /// True if `ahead` is a lower bound because not all sessions were counted.
    pub at_least: bool,
    pub slots: u32,
    pub free_slots: u32,
}

/// The latest step of a run, in short.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StepGlance {
    /// Position in the run, from 0.
    pub index: u32,
    /// `tool_call` or `model_call`.
    pub kind: String,
    /// Name of the tool or the model.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// Omitted while the step is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
}

/// An estimate from earlier runs, with its basis.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Estimate {
    /// `start`, `resume` or `end`.
    pub of: String,
    /// Rounded to its precision; zero means any moment. Omitted if there is no estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about_ms: Option<u64>,
    /// The basis of the estimate, or why there is none.
    pub basis: String,
    /// The latest possible time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at_latest: Option<String>,
    /// The estimate in one sentence.
    pub message: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Receipt {
    /// `requested`, `delivered`, `stopped` or `released`.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
}

/// One thing that a parked run waits for.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Wait {
    /// `approval`, `child` or `budget`.
    pub kind: String,
    /// Id of the approval (`apr_…`), of the child run (`run_…`), or of the run or session with the budget.
    pub id: String,
    pub message: String,
    /// The command to type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// State of a child run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What the next model call may take of the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<Amount>,
}

impl From<v1::ExplainRunResponse> for Explanation {
    fn from(answer: v1::ExplainRunResponse) -> Self {
        Self {
            state: RunState::of(answer.state),
            run_id: answer.run_id,
            reason: answer.reason,
            message: answer.message,
            waits_for: text(answer.waits_for),
            position: answer.position,
            hint: text(answer.hint),
            receipts: list(answer.receipts),
            waits: list(answer.waits),
            place: answer.place.map(Into::into),
            since: time(answer.since),
            step: answer.step.map(Into::into),
            estimate: answer.estimate.map(Into::into),
        }
    }
}

impl From<v1::QueuePlace> for QueuePlace {
    fn from(place: v1::QueuePlace) -> Self {
        let v1::QueuePlace { pool, ahead, at_least, slots, free_slots } = place;
        Self { pool, ahead, at_least, slots, free_slots }
    }
}

impl From<v1::StepGlance> for StepGlance {
    fn from(step: v1::StepGlance) -> Self {
        Self {
            index: step.index,
            kind: step.kind,
            name: step.name,
            started_at: time(step.started_at),
            finished_at: time(step.finished_at),
        }
    }
}

impl From<v1::Estimate> for Estimate {
    fn from(estimate: v1::Estimate) -> Self {
        Self {
            of: estimate.of,
            about_ms: millis(estimate.about),
            basis: estimate.basis,
            at_latest: time(estimate.at_latest),
            message: estimate.message,
        }
    }
}

impl From<v1::Receipt> for Receipt {
    fn from(receipt: v1::Receipt) -> Self {
        Self { name: receipt.name, at: time(receipt.at) }
    }
}

impl From<v1::Wait> for Wait {
    fn from(wait: v1::Wait) -> Self {
        let needed = Amount { tokens: wait.needed_tokens, micros: wait.needed_micros };
        Self {
            kind: wait.kind,
            id: wait.id,
            message: wait.message,
            hint: text(wait.hint),
            session_id: text(wait.session_id),
            agent: text(wait.agent),
            tool: text(wait.tool),
            state: text(wait.state),
            since: time(wait.since),
            expires_at: time(wait.expires_at),
            needed: wait.budget.is_some().then_some(needed),
            budget: wait.budget.map(Into::into),
        }
    }
}
