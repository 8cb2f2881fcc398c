use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{
    LogFilterChange, LogFilterList, Overview, PoolList, SandboxList, TaskList, Worker, WorkerList,
};
use remuda_domain::Error;
use remuda_http::{Caller, Input, MayOperate, Outcome, Params, Refusals, Segment, Unreadable};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Http;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Workers {
    /// Also those whose lease ended.
    include_gone: bool,
}

/// The workers.
#[utoipa::path(get, path = "/workers", tag = "fleet", operation_id = "list_workers", params(Workers),
    responses((status = 200, body = WorkerList), Refusals))]
pub(super) async fn workers(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
    Params(Workers { include_gone }): Params<Workers>,
) -> Outcome<Json<WorkerList>> {
    Ok(Json(http.calls.list_workers(caller, v1::ListWorkersRequest { include_gone }).await?.into()))
}

/// The worker finishes what it executes and takes nothing new.
#[utoipa::path(post, path = "/workers/{worker_id}/drain", tag = "fleet", operation_id = "drain_worker",
    params(("worker_id" = String, Path, pattern = "^wrk_[0-9a-z]{26}$", description = "wrk_…")),
    responses((status = 202, body = Worker), Refusals))]
pub(super) async fn drain(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
    Segment(worker_id): Segment,
) -> Outcome<(StatusCode, Json<Worker>)> {
    let answer = http.calls.drain_worker(caller, v1::DrainWorkerRequest { worker_id }).await?;
    Ok((StatusCode::ACCEPTED, Json(answer.worker.unwrap_or_default().into())))
}

/// How much waits for the workers of each pool.
#[utoipa::path(get, path = "/queue", tag = "fleet", operation_id = "get_queue_stats",
    responses((status = 200, body = PoolList), Refusals))]
pub(super) async fn queue(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
) -> Outcome<Json<PoolList>> {
    Ok(Json(http.calls.get_queue_stats(caller, v1::GetQueueStatsRequest {}).await?.into()))
}

/// What the control plane does by itself.
#[utoipa::path(get, path = "/tasks", tag = "fleet", operation_id = "list_tasks",
    responses((status = 200, body = TaskList), Refusals))]
pub(super) async fn tasks(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
) -> Outcome<Json<TaskList>> {
    Ok(Json(http.calls.list_tasks(caller, v1::ListTasksRequest {}).await?.into()))
}

/// What exists, or should, outside of the worker processes: containers.
#[utoipa::path(get, path = "/sandboxes", tag = "fleet", operation_id = "list_sandboxes",
    responses((status = 200, body = SandboxList), Refusals))]
pub(super) async fn sandboxes(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
) -> Outcome<Json<SandboxList>> {
    Ok(Json(http.calls.list_sandboxes(caller, v1::ListSandboxesRequest {}).await?.into()))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Meant {
    /// Only processes that do this, or `self`: the control plane that answers. All when left out.
    #[param(pattern = "^(control-plane|worker|stream|self)?$")]
    only: String,
}

/// What processes log. One whose answer does not come in time is missing.
#[utoipa::path(get, path = "/log-filter", tag = "fleet", operation_id = "get_log_filter", params(Meant),
    responses((status = 200, body = LogFilterList), Refusals))]
pub(super) async fn log_filter(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
    Params(Meant { only }): Params<Meant>,
) -> Outcome<Json<LogFilterList>> {
    Ok(Json(http.calls.get_log_filter(caller, v1::GetLogFilterRequest { only }).await?.into()))
}

/// Changes what processes log, for a while.
#[utoipa::path(put, path = "/log-filter", tag = "fleet", operation_id = "set_log_filter", request_body = LogFilterChange,
    responses((status = 200, body = LogFilterList), Refusals, Unreadable))]
pub(super) async fn set_log_filter(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
    Input(change): Input<LogFilterChange>,
) -> Outcome<Json<LogFilterList>> {
    Ok(Json(http.calls.set_log_filter(caller, change.into()).await?.into()))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Lists {
    /// How many runs each list holds; 20 when missing.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
}

/// Everything that a live view shows: fleet, queues, and of the caller's own runs those that run and wait for longest.
#[utoipa::path(get, path = "/overview", tag = "fleet", operation_id = "get_overview", params(Lists),
    responses((status = 200, body = Overview), Refusals))]
pub(super) async fn overview(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayOperate>,
    Params(Lists { limit }): Params<Lists>,
) -> Outcome<Json<Overview>> {
    // Zero means nothing in particular over gRPC, where nothing cannot be told from it. Here it can.
    if limit == Some(0) {
        return Err(Error::invalid("limit", "expected 1 to 100").into());
    }
    let request = v1::GetOverviewRequest { limit: limit.unwrap_or(0) };
    Ok(Json(http.calls.get_overview(caller, request).await?.into()))
}
