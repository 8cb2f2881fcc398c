use std::collections::BTreeMap;

use axum::{Json, extract::State};
use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, HeaderName},
};
use remuda_api::{
    BudgetSet, CancelRequest, Explanation, Limit, NewMessage, NewRun, Run, RunPage, StepList, Submitted,
    Trace, Waited,
};
use remuda_domain::{Error, Labels, RunState, error::Result, identity::Principal};
use remuda_grpc::cause;
use remuda_http::{
    BodyErrors, Caller, CommonErrors, ErrorBody, Input, MayRead, MayWrite, MaybeInput, Outcome, Params,
    Segment, wait_time,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Http, idempotency_key::IdempotencyKey};
use crate::calls::MAX_WAIT;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Only runs of this session: id or name.
    session: String,
    /// Only runs in one of these states, separated by commas.
    #[param(example = "queued,running")]
    states: String,
    /// Only runs with this label, `key=value`. May be repeated: a run must have all of them.
    #[param(example = json!(["team=core"]))]
    label: Vec<String>,
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the previous page.
    page_token: String,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionListQuery {
    /// Only runs in one of these states, separated by commas.
    #[param(example = "queued,running")]
    states: String,
    /// Only runs with this label, `key=value`. May be repeated: a run must have all of them.
    #[param(example = json!(["team=core"]))]
    label: Vec<String>,
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the previous page.
    page_token: String,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WaitQuery {
    /// How long to wait: `30s`, `500ms`, or seconds. At most 5 minutes; 30 seconds if omitted.
    #[param(example = "30s")]
    timeout: Option<String>,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SubmitQuery {
    /// How long to wait for the end of the run before responding: `30s`, `500ms`, or seconds. At most 5 minutes. If
    /// omitted, the response comes as soon as the run is accepted.
    #[param(example = "30s")]
    wait: Option<String>,
}

fn labels(texts: &[String]) -> Result<BTreeMap<String, String>> {
    Ok(Labels::parse(texts.iter().map(String::as_str))?.into_iter().collect())
}

fn states(text: &str) -> Result<Vec<i32>> {
    let read = |name: &str| {
        let name = name.trim();
        let found = RunState::ALL.iter().find(|state| state.as_str() == name);
        let found = found.ok_or_else(|| Error::invalid("states", "expected names of run states"))?;
        Ok(v1::RunState::from(*found).into())
    };
    text.split(',').filter(|name| !name.trim().is_empty()).map(read).collect()
}

/// Renames timeout fields in errors: over HTTP they are in milliseconds and end with `_ms`.
fn rename_timeout_field(error: Error) -> Error {
    match error.field() {
        Some(field) if field == "timeout" || field.ends_with(".timeout") => {
            let field = format!("{field}_ms");
            error.at(field)
        }
        _ => error,
    }
}

async fn submit_and_respond(
    http: &Http,
    caller: Principal,
    headers: &HeaderMap,
    SubmitQuery { wait }: SubmitQuery,
    request: v1::SubmitRunRequest,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    let wait = wait.map(|text| wait_time("wait", &text, MAX_WAIT)).transpose()?;
    let request_waits = wait.is_some();
    let request = v1::SubmitRunRequest { wait: wait.and_then(|wait| wait.try_into().ok()), ..request };
    let answer =
        http.calls.submit_run(caller, request, cause(headers)).await.map_err(rename_timeout_field)?;
    let finished = answer.run.clone().filter(|run| request_waits && run.finished_at.is_some());
    let status = if finished.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(Submitted { run: finished.map(Into::into), ..answer.into() })))
}

/// Sends a message to the session's agent. The response confirms that the run is accepted; follow the run, or wait for it.
#[utoipa::path(post, path = "/sessions/{session}/messages", tag = "runs", operation_id = "send_message",
    params(("session" = String, Path, description = "Id or name."), ("idempotency-key" = Option<String>, Header, description = "Makes retries safe: repeating the request with the same key returns the same run, for at least 24 hours."), SubmitQuery),
    request_body = NewMessage,
    responses((status = 202, body = Submitted, description = "Accepted."), (status = 200, body = Submitted, description = "The run has ended."), (status = 409, body = ErrorBody, description = "The session is closed or busy, or the key was used for another request."), CommonErrors, BodyErrors))]
pub(super) async fn send_message(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    headers: HeaderMap,
    IdempotencyKey(key): IdempotencyKey,
    Params(query): Params<SubmitQuery>,
    Input(message): Input<NewMessage>,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    submit_and_respond(&http, caller, &headers, query, message.into_request(session, key)?).await
}

/// Submits a run: a list of tool calls, or a message.
#[utoipa::path(post, path = "/sessions/{session}/runs", tag = "runs", operation_id = "submit_run",
    params(("session" = String, Path, description = "Id or name."), ("idempotency-key" = Option<String>, Header, description = "Makes retries safe: repeating the request with the same key returns the same run, for at least 24 hours."), SubmitQuery),
    request_body = NewRun,
    responses((status = 202, body = Submitted, description = "Accepted."), (status = 200, body = Submitted, description = "The run has ended."), (status = 409, body = ErrorBody, description = "The session is closed or busy, or the key was used for another request."), CommonErrors, BodyErrors))]
pub(super) async fn submit(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    headers: HeaderMap,
    IdempotencyKey(key): IdempotencyKey,
    Params(query): Params<SubmitQuery>,
    Input(run): Input<NewRun>,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    submit_and_respond(&http, caller, &headers, query, run.into_request(session, key)?).await
}

/// Lists runs, newest first.
#[utoipa::path(get, path = "/runs", tag = "runs", operation_id = "list_runs", params(ListQuery),
    responses((status = 200, body = RunPage), CommonErrors))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(query): Params<ListQuery>,
) -> Outcome<Json<RunPage>> {
    let ListQuery { session, states: names, label, page_size, page_token } = query;
    let (states, labels) = (states(&names)?, labels(&label)?);
    let request = v1::ListRunsRequest { session, states, page_size, page_token, labels };
    Ok(Json(http.calls.list_runs(caller, request).await?.into()))
}

/// Lists the runs of a session, newest first.
#[utoipa::path(get, path = "/sessions/{session}/runs", tag = "runs", operation_id = "list_session_runs",
    params(("session" = String, Path, description = "Id or name."), SessionListQuery),
    responses((status = 200, body = RunPage), CommonErrors))]
pub(super) async fn of_session(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
    Params(query): Params<SessionListQuery>,
) -> Outcome<Json<RunPage>> {
    let SessionListQuery { states: names, label, page_size, page_token } = query;
    let (states, labels) = (states(&names)?, labels(&label)?);
    let request = v1::ListRunsRequest { session, states, page_size, page_token, labels };
    Ok(Json(http.calls.list_runs(caller, request).await?.into()))
}

/// Returns a run, with what it and the runs below it have spent.
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs", operation_id = "get_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Run), CommonErrors))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Run>> {
    let answer = http.calls.get_run(caller, v1::GetRunRequest { run_id }).await?;
    Ok(Json(answer.run.unwrap_or_default().into()))
}

/// Returns the trace of a run: where its time and money went. Reconstructed from the database.
#[utoipa::path(get, path = "/runs/{run_id}/trace", tag = "runs", operation_id = "get_run_trace",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Trace), CommonErrors))]
pub(super) async fn trace(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Trace>> {
    let request = v1::GetRunTraceRequest { run_id, without_children: false };
    Ok(Json(http.calls.get_run_trace(caller, request).await?.into()))
}

/// Lists the steps of a run.
#[utoipa::path(get, path = "/runs/{run_id}/steps", tag = "runs", operation_id = "list_steps",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = StepList), CommonErrors))]
pub(super) async fn steps(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<StepList>> {
    Ok(Json(http.calls.list_steps(caller, v1::ListStepsRequest { run_id }).await?.into()))
}

/// Requests the cancellation of a run. A run that no worker executes is cancelled at once; otherwise the run's field `cancel` shows the progress.
#[utoipa::path(post, path = "/runs/{run_id}/cancel", tag = "runs", operation_id = "cancel_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")), request_body(content = Option<CancelRequest>),
    responses((status = 202, body = Run), (status = 200, body = Run, description = "The run had already ended: nothing was cancelled."), CommonErrors, BodyErrors))]
pub(super) async fn cancel(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(run_id): Segment,
    MaybeInput(CancelRequest { reason }): MaybeInput<CancelRequest>,
) -> Outcome<(StatusCode, Json<Run>)> {
    let request = v1::CancelRunRequest { run_id, reason: reason.unwrap_or_default() };
    let answer = http.calls.cancel_run(caller, request).await?;
    let status = if answer.already_finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(answer.run.unwrap_or_default().into())))
}

/// Waits for a run to end. Returns its current state when the time is over.
#[utoipa::path(get, path = "/runs/{run_id}/wait", tag = "runs", operation_id = "wait_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…"), WaitQuery),
    responses((status = 200, body = Waited), CommonErrors))]
pub(super) async fn wait(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
    Params(WaitQuery { timeout }): Params<WaitQuery>,
) -> Outcome<Json<Waited>> {
    let max_wait = timeout.map(|text| wait_time("timeout", &text, MAX_WAIT)).transpose()?;
    let max_wait = max_wait.and_then(|wait| wait.try_into().ok());
    Ok(Json(http.calls.wait_run(caller, v1::WaitRunRequest { run_id, max_wait }).await?.into()))
}

/// Explains why a run has not ended, what it waits for, and when it may go on.
#[utoipa::path(get, path = "/runs/{run_id}/explain", tag = "runs", operation_id = "explain_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Explanation), CommonErrors))]
pub(super) async fn explain(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Explanation>> {
    Ok(Json(http.calls.explain_run(caller, v1::ExplainRunRequest { run_id }).await?.into()))
}

/// Sets the total spending limit of a run and the runs below it. Runs that waited for more budget resume.
#[utoipa::path(put, path = "/runs/{run_id}/budget", tag = "runs", operation_id = "set_run_budget",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")), request_body = Limit,
    responses((status = 200, body = BudgetSet), (status = 409, body = ErrorBody, description = "The run has ended."), CommonErrors, BodyErrors))]
pub(super) async fn set_budget(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(run_id): Segment,
    Input(limit): Input<Limit>,
) -> Outcome<Json<BudgetSet>> {
    let of = Some(v1::set_budget_request::Of::RunId(run_id));
    let request = v1::SetBudgetRequest { of, limit: Some(limit.into()) };
    Ok(Json(http.calls.set_budget(caller, request).await?.into()))
}

/// Returns a text that a step references by its hash.
#[utoipa::path(get, path = "/contents/{hash}", tag = "runs", operation_id = "get_content",
    params(("hash" = String, Path, pattern = "^[0-9a-f]{64}$", description = "64 hexadecimal digits.")),
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"), CommonErrors))]
pub(super) async fn content(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(hash): Segment,
) -> Outcome<([(HeaderName, &'static str); 1], String)> {
    let answer = http.calls.get_content(caller, v1::GetContentRequest { hash }).await?;
    // The text of a hash never changes.
    Ok(([(CACHE_CONTROL, "private, max-age=31536000, immutable")], answer.text))
}
