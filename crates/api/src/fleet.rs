//! Workers, queues, background tasks and log filters.

use std::collections::BTreeMap;

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json_value::{duration_ms, list, millis, text, time};

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Worker {
    /// `wrk_…`
    pub id: String,
    pub host: String,
    pub version: String,
    pub pool: String,
    pub slots: u32,
    /// Slots in use at the last heartbeat.
    pub busy: u32,
    /// `active`, `draining` or `gone`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub lease_until: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerList {
    pub items: Vec<Worker>,
}

/// The queue of one pool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Pool {
    pub pool: String,
    /// Sessions with a run that could start now. Use it for autoscaling.
    pub runnable_sessions: i64,
    /// Sessions that a worker owns now.
    pub running_sessions: i64,
    /// Runs that are neither running nor parked.
    pub queued_runs: i64,
    pub workers: u32,
    pub slots: u32,
    /// When the oldest runnable run was submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub oldest_runnable_at: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PoolList {
    pub items: Vec<Pool>,
}

/// A background task of the control plane.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Task {
    pub name: String,
    pub rounds: u64,
    pub failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<TaskRound>,
    /// The last round that did something or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_notable: Option<TaskRound>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskRound {
    /// The control plane that ran it.
    pub holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What the round did, such as `woken: 3`.
    pub counts: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskList {
    pub items: Vec<Task>,
}

/// A container of a worker, or the record of one that is being created.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Sandbox {
    /// `sbx_…`
    pub id: String,
    pub backend: String,
    /// `creating`, `spare`, `active` or `paused`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The epoch of the session that uses it.
    pub epoch: i64,
    pub worker_id: String,
    pub worker_alive: bool,
    /// The container's id at its engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub used_at: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SandboxList {
    /// Newest first, at most 1,000.
    pub items: Vec<Sandbox>,
}

/// The log filter of one process.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LogFilter {
    /// Unique name of the process, the same as `instance` in its log lines.
    pub process: String,
    pub host: String,
    /// `control-plane`, `worker`, `stream`.
    pub roles: Vec<String>,
    /// A level, or directives such as `info,remuda_worker=debug`.
    pub filter: String,
    /// The filter that the process started with and returns to.
    pub start_filter: String,
    /// When the process returns to its start filter. Omitted if the filter is unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub until: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LogFilterList {
    /// The responding process comes first.
    pub items: Vec<LogFilter>,
}

/// A temporary change of log filters.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogFilterChange {
    /// A level, or directives such as `info,remuda_worker=debug`. If omitted, each process returns to its start filter.
    #[schema(max_length = 1000, example = "info,remuda_worker=debug")]
    pub filter: String,
    /// How long the change lasts; 15 minutes if omitted.
    #[schema(minimum = 1000, maximum = 86_400_000)]
    pub lasts_ms: Option<u64>,
    /// Only processes with this role, or `self`: the responding control plane. All if omitted.
    #[schema(pattern = "^(control-plane|worker|stream|self)?$")]
    pub only: String,
}

/// Information about a server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ServerInfo {
    pub version: String,
    /// `embedded` or `split`.
    pub mode: String,
    /// Address of the stream service. Omitted if it is this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_endpoint: Option<String>,
    /// Whether requests need an API key.
    pub keys_required: bool,
    /// The tools that runs may call.
    pub tools: Vec<String>,
}

impl From<v1::Worker> for Worker {
    fn from(worker: v1::Worker) -> Self {
        Self {
            id: worker.id,
            host: worker.host,
            version: worker.version,
            pool: worker.pool,
            slots: worker.slots,
            busy: worker.busy,
            state: worker.state,
            started_at: time(worker.started_at),
            lease_until: time(worker.lease_until),
        }
    }
}

impl From<v1::ListWorkersResponse> for WorkerList {
    fn from(answer: v1::ListWorkersResponse) -> Self {
        Self { items: list(answer.workers) }
    }
}

impl From<v1::PoolStats> for Pool {
    fn from(pool: v1::PoolStats) -> Self {
        Self {
            pool: pool.pool,
            runnable_sessions: pool.runnable_sessions,
            running_sessions: pool.running_sessions,
            queued_runs: pool.queued_runs,
            workers: pool.workers,
            slots: pool.slots,
            oldest_runnable_at: time(pool.oldest_runnable_at),
        }
    }
}

impl From<v1::GetQueueStatsResponse> for PoolList {
    fn from(answer: v1::GetQueueStatsResponse) -> Self {
        Self { items: list(answer.pools) }
    }
}

impl From<v1::Task> for Task {
    fn from(task: v1::Task) -> Self {
        Self {
            name: task.name,
            rounds: task.rounds,
            failures: task.failures,
            last: task.last.map(Into::into),
            last_notable: task.last_notable.map(Into::into),
        }
    }
}

impl From<v1::TaskRound> for TaskRound {
    fn from(round: v1::TaskRound) -> Self {
        Self {
            holder: round.holder,
            started_at: time(round.started_at),
            duration_ms: millis(round.duration),
            counts: round.counts,
            error: text(round.error),
        }
    }
}

impl From<v1::ListTasksResponse> for TaskList {
    fn from(answer: v1::ListTasksResponse) -> Self {
        Self { items: list(answer.tasks) }
    }
}

impl From<v1::Sandbox> for Sandbox {
    fn from(sandbox: v1::Sandbox) -> Self {
        Self {
            id: sandbox.id,
            backend: sandbox.backend,
            state: sandbox.state,
            tenant_id: text(sandbox.tenant_id),
            session_id: text(sandbox.session_id),
            epoch: sandbox.epoch,
            worker_id: sandbox.worker_id,
            worker_alive: sandbox.worker_alive,
            handle: text(sandbox.handle),
            engine: text(sandbox.engine),
            image: text(sandbox.image),
            digest: text(sandbox.digest),
            created_at: time(sandbox.created_at),
            used_at: time(sandbox.used_at),
        }
    }
}

impl From<v1::ListSandboxesResponse> for SandboxList {
    fn from(answer: v1::ListSandboxesResponse) -> Self {
        Self { items: list(answer.sandboxes) }
    }
}

impl From<v1::GetServerInfoResponse> for ServerInfo {
    fn from(info: v1::GetServerInfoResponse) -> Self {
        Self {
            version: info.version,
            mode: info.mode,
            stream_endpoint: text(info.stream_endpoint),
            keys_required: info.keys_required,
            tools: info.tools,
        }
    }
}

impl From<v1::LogFilter> for LogFilter {
    fn from(filter: v1::LogFilter) -> Self {
        Self {
            process: filter.process,
            host: filter.host,
            roles: filter.roles,
            filter: filter.filter,
            start_filter: filter.start_filter,
            until: time(filter.until),
        }
    }
}

impl From<v1::GetLogFilterResponse> for LogFilterList {
    fn from(answer: v1::GetLogFilterResponse) -> Self {
        Self { items: list(answer.processes) }
    }
}

impl From<v1::SetLogFilterResponse> for LogFilterList {
    fn from(answer: v1::SetLogFilterResponse) -> Self {
        Self { items: list(answer.processes) }
    }
}

impl From<LogFilterChange> for v1::SetLogFilterRequest {
    fn from(change: LogFilterChange) -> Self {
        Self { filter: change.filter, lasts: change.lasts_ms.map(duration_ms), only: change.only }
    }
}
