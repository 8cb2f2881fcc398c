//! Data of a live view of the fleet.

use remuda_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    explanation::StepGlance,
    fleet::{Pool, Worker},
    json_value::{list, text, time},
    run::RunState,
};

/// The fleet, its queues, and the tenant's longest running and longest waiting runs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Overview {
    /// When the fleet was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// The server's time of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub now: Option<String>,
    pub version: String,
    /// `embedded` or `split`.
    pub mode: String,
    /// Pools with work or workers, by name.
    pub pools: Vec<PoolOverview>,
    /// True if the counts of the pools are lower bounds because not all sessions were counted.
    pub at_least: bool,
    /// Workers with a live lease, by pool and age; at most 1,000.
    pub workers: Vec<Worker>,
    pub counts: Counts,
    /// Running runs of the caller's tenant, as of the last heartbeats of their workers.
    pub running: Vec<RunGlance>,
    /// Waiting runs of the caller's tenant: queued, parked, or without a worker.
    pub waiting: Vec<RunGlance>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PoolOverview {
    #[serde(flatten)]
    pub stats: Pool,
    /// Sessions whose next run is parked.
    pub parked_sessions: i64,
    /// Slots in use at the last heartbeats.
    pub busy: u32,
    /// Draining workers; they are not counted in `workers`.
    pub draining: u32,
}

/// Counters of the whole installation since its start. Compute rates from differences.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Counts {
    pub submitted: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub timed_out: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Millionths of a dollar.
    pub cost_micros: u64,
}

/// A run in a list, in short.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RunGlance {
    pub run_id: String,
    pub session_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    pub pool: String,
    /// `tools` or `message`.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// The same code as in an explanation.
    pub reason: String,
    /// The reason in a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When the run was started, submitted or parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// Number of unfinished runs ahead of it in its session.
    pub position: i64,
    /// The worker that owns its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The latest recorded step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepGlance>,
    pub tokens: u64,
    pub cost_micros: u64,
}

impl From<v1::GetOverviewResponse> for Overview {
    fn from(answer: v1::GetOverviewResponse) -> Self {
        Self {
            at: time(answer.at),
            now: time(answer.now),
            version: answer.version,
            mode: answer.mode,
            pools: list(answer.pools),
            at_least: answer.at_least,
            workers: list(answer.workers),
            counts: answer.counts.unwrap_or_default().into(),
            running: list(answer.running),
            waiting: list(answer.waiting),
        }
    }
}

impl From<v1::PoolOverview> for PoolOverview {
    fn from(pool: v1::PoolOverview) -> Self {
        Self {
            stats: pool.stats.unwrap_or_default().into(),
            parked_sessions: pool.parked_sessions,
            busy: pool.busy,
            draining: pool.draining,
        }
    }
}

impl From<v1::Counts> for Counts {
    fn from(counts: v1::Counts) -> Self {
        Self {
            submitted: counts.submitted,
            completed: counts.completed,
            failed: counts.failed,
            cancelled: counts.cancelled,
            timed_out: counts.timed_out,
            input_tokens: counts.input_tokens,
            output_tokens: counts.output_tokens,
            cost_micros: counts.cost_micros,
        }
    }
}

impl From<v1::RunGlance> for RunGlance {
    fn from(run: v1::RunGlance) -> Self {
        Self {
            state: RunState::of(run.state),
            run_id: run.run_id,
            session_id: run.session_id,
            session_name: text(run.session_name),
            pool: run.pool,
            kind: run.kind,
            agent: text(run.agent),
            reason: run.reason,
            why: text(run.why),
            since: time(run.since),
            position: run.position,
            worker_id: text(run.worker_id),
            step: run.step.map(Into::into),
            tokens: run.tokens,
            cost_micros: run.cost_micros,
        }
    }
}
