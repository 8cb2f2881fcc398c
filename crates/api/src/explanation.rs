//! Why a run is not finished.

use remuda_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    run::RunState,
    spending::{Amount, Budget},
    value::{list, text, time},
};

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Explanation {
    pub run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// `finished`, `executing`, `cancelling`, `behind_other_runs`, `waiting_for_worker`, `no_worker`, `owner_lost`,
    /// `attempt_lost`, `handed_over` or `parked`.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// What it waits for: a run id, a worker id or a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Unfinished runs ahead of it in its session.
    pub position: i64,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What has become of a request to stop it, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub receipts: Vec<Receipt>,
    /// What a parked run waits for, one by one; at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub waits: Vec<Wait>,
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
    /// `apr_…`, the `run_…` of a child, or the run or session that the budget is of.
    pub id: String,
    pub message: String,
    /// What to type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Of a child: the name of a run state.
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
    /// Of a budget: what the next question may take.
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
