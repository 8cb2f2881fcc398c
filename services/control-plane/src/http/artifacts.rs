use axum::{
    Json,
    extract::{Path, State},
};
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use remuda_domain::{Error, RunId};
use remuda_http::{Caller, CommonErrors, MayRead, Outcome, Segment};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Http, PREFIX};
use crate::app::Artifact as File;

/// A file in the workspace with tool output that was too long for the tool result.
#[derive(Serialize, ToSchema)]
pub(super) struct Artifact {
    /// The tool call that wrote it (`tool_…`).
    call_id: String,
    tool: String,
    /// Such as `output`, `stdout` or `stderr`.
    name: String,
    /// Path relative to the root of the workspace.
    path: String,
    /// Path of its contents on this server.
    url: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ArtifactList {
    /// In the order of the calls.
    items: Vec<Artifact>,
}

fn artifact(run: RunId, file: File) -> Artifact {
    let File { call, tool, name, path } = file;
    let url = format!("{PREFIX}/runs/{run}/artifacts/{call}/{name}");
    Artifact { call_id: call.to_string(), tool, name, path, url }
}

/// Lists the artifacts of a run: files with long tool output.
#[utoipa::path(get, path = "/runs/{run_id}/artifacts", tag = "runs", operation_id = "list_artifacts",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = ArtifactList), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<ArtifactList>> {
    let run: RunId = run_id.parse()?;
    let files = http.calls.app().list_artifacts(&caller, run).await?;
    Ok(Json(ArtifactList { items: files.into_iter().map(|file| artifact(run, file)).collect() }))
}

/// Downloads an artifact. It is in the workers' directories: a server that does not see these responds with 404.
#[utoipa::path(get, path = "/runs/{run_id}/artifacts/{call_id}/{name}", tag = "runs", operation_id = "get_artifact",
    params(
        ("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…"),
        ("call_id" = String, Path, pattern = "^tool_[0-9a-z]{26}$", description = "tool_…"),
        ("name" = String, Path, description = "output, stdout or stderr"),
    ),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = 413, body = remuda_http::ErrorBody, description = "The file is larger than 64 MiB."), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    path: Result<Path<(String, String, String)>, axum::extract::rejection::PathRejection>,
) -> Outcome<([(HeaderName, &'static str); 2], Vec<u8>)> {
    let Path((run, call, name)) =
        path.map_err(|_| Error::invalid("path", "expected UTF-8, percent-encoded"))?;
    let bytes = http.calls.app().read_artifact(&caller, run.parse()?, call.parse()?, &name).await?;
    // Untrusted content: a browser must not render it.
    Ok(([(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, "attachment")], bytes))
}
