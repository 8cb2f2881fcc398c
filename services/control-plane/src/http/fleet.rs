use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{
    LogFilterChange, LogFilterList, Overview, PoolList, SandboxList, TaskList, Worker, WorkerList,
};
use remuda_domain::Error;
use remuda_http::{BodyErrors, CommonErrors, Input, OperatorCaller, Outcome, Params, Segment};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Http;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WorkersQuery {
    /// Also workers whose lease has ended.
    include_gone: bool,
}

/// Lists the workers.
#[utoipa::path(get, path = "/workers", tag = "fleet", operation_id = "list_workers", params(WorkersQuery),
    responses((status = 200, body = WorkerList), CommonErrors))]
pub(super) async fn workers(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Params(WorkersQuery { include_gone }): Params<WorkersQuery>,
) -> Outcome<Json<WorkerList>> {
    Ok(Json(http.calls.list_workers(caller, v1::ListWorkersRequest { include_gone }).await?.into()))
}

/// Drains a worker: it finishes what it executes and takes nothing new.
#[utoipa::path(post, path = "/workers/{worker_id}/drain", tag = "fleet", operation_id = "drain_worker",
    params(("worker_id" = String, Path, pattern = "^wrk_[0-9a-z]{26}$", description = "wrk_…")),
    responses((status = 202, body = Worker), CommonErrors))]
pub(super) async fn drain(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Segment(worker_id): Segment,
) -> Outcome<(StatusCode, Json<Worker>)> {
    let answer = http.calls.drain_worker(caller, v1::DrainWorkerRequest { worker_id }).await?;
    Ok((StatusCode::ACCEPTED, Json(answer.worker.unwrap_or_default().into())))
}

/// Returns the queue length of each pool.
#[utoipa::path(get, path = "/queue", tag = "fleet", operation_id = "get_queue_stats",
    responses((status = 200, body = PoolList), CommonErrors))]
pub(super) async fn queue(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
) -> Outcome<Json<PoolList>> {
    Ok(Json(http.calls.get_queue_stats(caller, v1::GetQueueStatsRequest {}).await?.into()))
}

/// Lists the background tasks of the control plane.
#[utoipa::path(get, path = "/tasks", tag = "fleet", operation_id = "list_tasks",
    responses((status = 200, body = TaskList), CommonErrors))]
pub(super) async fn tasks(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
) -> Outcome<Json<TaskList>> {
    Ok(Json(http.calls.list_tasks(caller, v1::ListTasksRequest {}).await?.into()))
}

/// Lists the sandboxes: containers of workers.
#[utoipa::path(get, path = "/sandboxes", tag = "fleet", operation_id = "list_sandboxes",
    responses((status = 200, body = SandboxList), CommonErrors))]
pub(super) async fn sandboxes(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
) -> Outcome<Json<SandboxList>> {
    Ok(Json(http.calls.list_sandboxes(caller, v1::ListSandboxesRequest {}).await?.into()))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogFilterQuery {
    /// Only processes with this role, or `self`: the control plane that responds. All if omitted.
    #[param(pattern = "^(control-plane|worker|stream|self)?$")]
    only: String,
}

/// Lists the log filters of processes. A process that does not respond in time is missing.
#[utoipa::path(get, path = "/log-filter", tag = "fleet", operation_id = "get_log_filter", params(LogFilterQuery),
    responses((status = 200, body = LogFilterList), CommonErrors))]
pub(super) async fn log_filter(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Params(LogFilterQuery { only }): Params<LogFilterQuery>,
) -> Outcome<Json<LogFilterList>> {
    Ok(Json(http.calls.get_log_filter(caller, v1::GetLogFilterRequest { only }).await?.into()))
}

/// Changes the log filters of processes for a limited time.
#[utoipa::path(put, path = "/log-filter", tag = "fleet", operation_id = "set_log_filter", request_body = LogFilterChange,
    responses((status = 200, body = LogFilterList), CommonErrors, BodyErrors))]
pub(super) async fn set_log_filter(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Input(change): Input<LogFilterChange>,
) -> Outcome<Json<LogFilterList>> {
    Ok(Json(http.calls.set_log_filter(caller, change.into()).await?.into()))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OverviewQuery {
    /// Maximum length of each list of runs; 20 if omitted.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Name of the tenant whose runs are listed. No runs if omitted; without keys, those of the default tenant.
    tenant: String,
}

/// Returns the data of a live view: the fleet, its queues, and one tenant's longest running and longest waiting runs.
#[utoipa::path(get, path = "/overview", tag = "fleet", operation_id = "get_overview", params(OverviewQuery),
    responses((status = 200, body = Overview), CommonErrors))]
pub(super) async fn overview(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Params(OverviewQuery { limit, tenant }): Params<OverviewQuery>,
) -> Outcome<Json<Overview>> {
    // gRPC cannot tell zero from a missing value and uses the default for both. HTTP can.
    if limit == Some(0) {
        return Err(Error::invalid("limit", "expected 1 to 100").into());
    }
    let request = v1::GetOverviewRequest { limit: limit.unwrap_or(0), tenant };
    Ok(Json(http.calls.get_overview(caller, request).await?.into()))
}
