use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{PoolList, SandboxList, TaskList, Worker, WorkerList};
use remuda_http::{Caller, MayOperate, Outcome, Params, Refusals, Segment};
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
