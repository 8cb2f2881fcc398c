use axum::{Json, extract::State};
use hyper::{
    StatusCode,
    header::{ETAG, HeaderName, HeaderValue, LOCATION},
};
use remuda_api::{
    BudgetSet, CancelSessionRequest, CancelledSession, CloseSessionRequest, Limit, MessagePage, NewSession,
    RunPage, Session, SessionChange, SessionPage, SessionStatus,
};
use remuda_domain::Error;
use remuda_http::{
    BodyErrors, Caller, CommonErrors, IfMatch, Input, MayRead, MayWrite, MaybeInput, Outcome, Params,
    Segment, etag,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Http, PREFIX, paging::PageQuery};

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Only sessions with this status.
    #[param(inline)]
    status: Option<SessionStatus>,
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the previous page.
    page_token: String,
}

/// A session with the ETag of its editable fields.
type Tagged = ([(HeaderName, HeaderValue); 1], Json<Session>);

fn tagged(session: v1::Session) -> Tagged {
    ([(ETAG, etag(&session.revision))], Json(session.into()))
}

/// Renames the revision field in errors: over HTTP it is a header.
fn at_if_match(error: Error) -> Error {
    if error.field() == Some("if_revision") { error.at("if-match") } else { error }
}

/// Lists sessions, newest first.
#[utoipa::path(get, path = "/sessions", tag = "sessions", operation_id = "list_sessions", params(ListQuery),
    responses((status = 200, body = SessionPage), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(query): Params<ListQuery>,
) -> Outcome<Json<SessionPage>> {
    let status = query.status.map_or(v1::SessionStatus::Unspecified, Into::into);
    let request = v1::ListSessionsRequest {
        page_size: query.page_size,
        page_token: query.page_token,
        status: status.into(),
    };
    Ok(Json(http.calls.list_sessions(caller, request).await?.into()))
}

/// Creates a session.
#[utoipa::path(post, path = "/sessions", tag = "sessions", operation_id = "create_session", request_body(content = Option<NewSession>),
    responses((status = 201, body = Session), (status = 409, body = remuda_http::ErrorBody, description = "A session with this name exists."), CommonErrors, BodyErrors))]
pub(super) async fn create(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    MaybeInput(new): MaybeInput<NewSession>,
) -> Outcome<(StatusCode, [(HeaderName, HeaderValue); 1], Tagged)> {
    let session = http.calls.create_session(caller, new.into()).await?.session.unwrap_or_default();
    let location = HeaderValue::try_from(format!("{PREFIX}/sessions/{}", session.id));
    let location = location.unwrap_or_else(|_| HeaderValue::from_static(PREFIX));
    Ok((StatusCode::CREATED, [(LOCATION, location)], tagged(session)))
}

/// Returns a session, with what it has spent.
#[utoipa::path(get, path = "/sessions/{session}", tag = "sessions", operation_id = "get_session",
    params(("session" = String, Path, description = "Id or name.")),
    responses((status = 200, body = Session, headers(("etag" = String, description = "Send it as If-Match to change exactly this revision."))), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
) -> Outcome<Tagged> {
    let answer = http.calls.get_session(caller, v1::GetSessionRequest { session }).await?;
    Ok(tagged(answer.session.unwrap_or_default()))
}

/// Changes the title, the agent, the model (before the first run) or the permissions of a session.
#[utoipa::path(patch, path = "/sessions/{session}", tag = "sessions", operation_id = "update_session",
    params(("session" = String, Path, description = "Id or name."), ("if-match" = Option<String>, Header, description = "The ETag of the revision to change.")),
    request_body = SessionChange,
    responses((status = 200, body = Session), (status = 409, body = remuda_http::ErrorBody, description = "This field cannot be changed any more."), (status = 412, body = remuda_http::ErrorBody, description = "The session has been changed since this revision."), CommonErrors, BodyErrors))]
pub(super) async fn update(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    IfMatch(seen): IfMatch,
    Segment(session): Segment,
    Input(change): Input<SessionChange>,
) -> Outcome<Tagged> {
    let answer = http.calls.update_session(caller, change.of(session, seen)).await.map_err(at_if_match)?;
    Ok(tagged(answer.session.unwrap_or_default()))
}

/// Closes a session: it accepts no more runs.
#[utoipa::path(post, path = "/sessions/{session}/close", tag = "sessions", operation_id = "close_session",
    params(("session" = String, Path, description = "Id or name.")), request_body(content = Option<CloseSessionRequest>),
    responses((status = 200, body = Session), CommonErrors, BodyErrors))]
pub(super) async fn close(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    MaybeInput(CloseSessionRequest { cancel_runs }): MaybeInput<CloseSessionRequest>,
) -> Outcome<Json<Session>> {
    let answer = http.calls.close_session(caller, v1::CloseSessionRequest { session, cancel_runs }).await?;
    Ok(Json(answer.session.unwrap_or_default().into()))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DeleteQuery {
    /// Cancel unfinished runs first. If they do not stop within seconds, the call fails with `session_busy`: repeat it then.
    cancel_runs: bool,
}

/// Deletes a session, the sessions below it, and all their runs, messages and events.
#[utoipa::path(delete, path = "/sessions/{session}", tag = "sessions", operation_id = "delete_session",
    params(("session" = String, Path, description = "Id or name."), DeleteQuery),
    responses((status = 204, description = "Deleted."), (status = 409, body = remuda_http::ErrorBody, description = "The session, or one below it, has unfinished runs."), CommonErrors))]
pub(super) async fn delete(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    Params(DeleteQuery { cancel_runs }): Params<DeleteQuery>,
) -> Outcome<StatusCode> {
    http.calls.delete_session(caller, v1::DeleteSessionRequest { session, cancel_runs }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Requests the cancellation of every unfinished run of a session, or of the tree below it. The sessions stay open.
#[utoipa::path(post, path = "/sessions/{session}/cancel", tag = "sessions", operation_id = "cancel_session",
    params(("session" = String, Path, description = "Id or name.")), request_body(content = Option<CancelSessionRequest>),
    responses((status = 202, body = CancelledSession), CommonErrors, BodyErrors))]
pub(super) async fn cancel(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    MaybeInput(CancelSessionRequest { tree, reason }): MaybeInput<CancelSessionRequest>,
) -> Outcome<(StatusCode, Json<CancelledSession>)> {
    let request = v1::CancelSessionRequest { session, tree, reason: reason.unwrap_or_default() };
    Ok((StatusCode::ACCEPTED, Json(http.calls.cancel_session(caller, request).await?.into())))
}

/// Lists the direct child sessions of a session, oldest first.
#[utoipa::path(get, path = "/sessions/{session}/children", tag = "sessions", operation_id = "list_child_sessions",
    params(("session" = String, Path, description = "Id or name."), PageQuery),
    responses((status = 200, body = SessionPage), CommonErrors))]
pub(super) async fn children(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
    Params(PageQuery { page_size, page_token }): Params<PageQuery>,
) -> Outcome<Json<SessionPage>> {
    let request = v1::ListChildSessionsRequest { session, page_size, page_token };
    Ok(Json(http.calls.list_child_sessions(caller, request).await?.into()))
}

/// Lists the unfinished runs of a session in the order of their execution.
#[utoipa::path(get, path = "/sessions/{session}/queue", tag = "sessions", operation_id = "list_queue",
    params(("session" = String, Path, description = "Id or name."), PageQuery),
    responses((status = 200, body = RunPage), CommonErrors))]
pub(super) async fn queue(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
    Params(PageQuery { page_size, page_token }): Params<PageQuery>,
) -> Outcome<Json<RunPage>> {
    let request = v1::ListQueueRequest { session, page_size, page_token };
    Ok(Json(http.calls.list_queue(caller, request).await?.into()))
}

/// Lists the messages of a session's transcript, oldest first.
#[utoipa::path(get, path = "/sessions/{session}/messages", tag = "sessions", operation_id = "list_messages",
    params(("session" = String, Path, description = "Id or name."), PageQuery),
    responses((status = 200, body = MessagePage), CommonErrors))]
pub(super) async fn messages(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
    Params(PageQuery { page_size, page_token }): Params<PageQuery>,
) -> Outcome<Json<MessagePage>> {
    let request = v1::ListMessagesRequest { session, page_size, page_token };
    Ok(Json(http.calls.list_messages(caller, request).await?.into()))
}

/// Sets the total spending limit of a session and the sessions below it. Runs that waited for more budget resume.
#[utoipa::path(put, path = "/sessions/{session}/budget", tag = "sessions", operation_id = "set_session_budget",
    params(("session" = String, Path, description = "Id or name.")), request_body = Limit,
    responses((status = 200, body = BudgetSet), CommonErrors, BodyErrors))]
pub(super) async fn set_budget(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    Input(limit): Input<Limit>,
) -> Outcome<Json<BudgetSet>> {
    let of = Some(v1::set_budget_request::Of::Session(session));
    let request = v1::SetBudgetRequest { of, limit: Some(limit.into()) };
    Ok(Json(http.calls.set_budget(caller, request).await?.into()))
}
