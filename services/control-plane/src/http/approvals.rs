use axum::{Json, extract::State};
use remuda_api::{Approval, ApprovalPage, DecisionRequest};
use remuda_http::{
    BodyErrors, Caller, CommonErrors, ErrorBody, Input, MayApprove, MayRead, Outcome, Params, Segment,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Http;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// `pending`, `approved`, `denied`, `expired` or `withdrawn`; all if omitted.
    #[param(example = "pending")]
    state: String,
    /// Id or name of a session.
    session: String,
    run_id: String,
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the previous page.
    page_token: String,
}

/// Lists approvals, pending and decided, newest first.
#[utoipa::path(get, path = "/approvals", tag = "approvals", operation_id = "list_approvals", params(ListQuery),
    responses((status = 200, body = ApprovalPage), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(ListQuery { state, session, run_id, page_size, page_token }): Params<ListQuery>,
) -> Outcome<Json<ApprovalPage>> {
    let request = v1::ListApprovalsRequest { state, session, run_id, page_size, page_token };
    Ok(Json(http.calls.list_approvals(caller, request).await?.into()))
}

/// Returns an approval.
#[utoipa::path(get, path = "/approvals/{approval_id}", tag = "approvals", operation_id = "get_approval",
    params(("approval_id" = String, Path, pattern = "^apr_[0-9a-z]{26}$", description = "apr_…")),
    responses((status = 200, body = Approval), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(approval_id): Segment,
) -> Outcome<Json<Approval>> {
    let answer = http.calls.get_approval(caller, v1::GetApprovalRequest { approval_id }).await?;
    Ok(Json(answer.approval.unwrap_or_default().into()))
}

/// Approves or denies a tool call, once. Requires the scope `approve`.
#[utoipa::path(post, path = "/approvals/{approval_id}/decision", tag = "approvals", operation_id = "decide_approval",
    params(("approval_id" = String, Path, pattern = "^apr_[0-9a-z]{26}$", description = "apr_…")), request_body = DecisionRequest,
    responses((status = 200, body = Approval), (status = 409, body = ErrorBody, description = "The approval is already decided, or no longer open."), CommonErrors, BodyErrors))]
pub(super) async fn decide(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayApprove>,
    Segment(approval_id): Segment,
    Input(decision): Input<DecisionRequest>,
) -> Outcome<Json<Approval>> {
    let answer = http.calls.decide_approval(caller, decision.of(approval_id)).await?;
    Ok(Json(answer.approval.unwrap_or_default().into()))
}
