use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::{NewWorkspace, Workspace, WorkspacePage};
use remuda_http::{
    BodyErrors, Caller, CommonErrors, Input, MayRead, OperatorCaller, Outcome, Params, Segment,
};
use remuda_proto::v1;

use super::{Http, paging::PageQuery};

/// Lists workspaces, by name.
#[utoipa::path(get, path = "/workspaces", tag = "workspaces", operation_id = "list_workspaces", params(PageQuery),
    responses((status = 200, body = WorkspacePage), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(PageQuery { page_size, page_token }): Params<PageQuery>,
) -> Outcome<Json<WorkspacePage>> {
    let request = v1::ListWorkspacesRequest { page_size, page_token };
    Ok(Json(http.calls.list_workspaces(caller, request).await?.into()))
}

/// Registers a directory of the workers as a workspace of a tenant. Requires the scope `operator`. The directory must lie
/// beneath one that the operator's configuration allows.
#[utoipa::path(post, path = "/workspaces", tag = "workspaces", operation_id = "create_workspace", request_body = NewWorkspace,
    responses((status = 201, body = Workspace), (status = 409, body = remuda_http::ErrorBody, description = "A workspace with this name exists."), CommonErrors, BodyErrors))]
pub(super) async fn create(
    State(http): State<Http>,
    OperatorCaller(caller): OperatorCaller,
    Input(new): Input<NewWorkspace>,
) -> Outcome<(StatusCode, Json<Workspace>)> {
    let answer = http.calls.create_workspace(caller, new.into()).await?;
    Ok((StatusCode::CREATED, Json(answer.workspace.unwrap_or_default().into())))
}

/// Returns a workspace.
#[utoipa::path(get, path = "/workspaces/{name}", tag = "workspaces", operation_id = "get_workspace",
    params(("name" = String, Path, description = "Name of the workspace.")),
    responses((status = 200, body = Workspace), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(name): Segment,
) -> Outcome<Json<Workspace>> {
    let answer = http.calls.get_workspace(caller, v1::GetWorkspaceRequest { name }).await?;
    Ok(Json(answer.workspace.unwrap_or_default().into()))
}
