use axum::{Json, extract::State};
use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, HeaderName},
};
use remuda_api::{
    BudgetSet, CancelRequest, Explanation, Limit, NewMessage, NewRun, Run, RunPage, StepList, Submitted,
    Trace, Waited,
};
use remuda_domain::{Error, RunState, error::Result, identity::Principal};
use remuda_grpc::cause;
use remuda_http::{
    Caller, ErrorBody, Input, MayRead, MayWrite, MaybeInput, Outcome, Params, Refusals, Segment, Unreadable,
    wait_time,
};
use remuda_proto::v1;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Http, keys::IdempotencyKey};
use crate::calls::MAX_WAIT;

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listing {
    /// Only runs of this session: id or name.
    session: String,
    /// Only runs in one of these states, separated by commas.
    #[param(example = "queued,running")]
    states: String,
    /// At most 500; 50 when left out.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the page before.
    page_token: String,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionListing {
    /// Only runs in one of these states, separated by commas.
    #[param(example = "queued,running")]
    states: String,
    /// At most 500; 50 when left out.
    #[param(minimum = 0, maximum = 500)]
    page_size: i32,
    /// `next_page_token` of the page before.
    page_token: String,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Waiting {
    /// How long to wait: `30s`, `500ms`, or seconds. At most 5 minutes; 30 seconds when left out.
    #[param(example = "30s")]
    timeout: Option<String>,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Submitting {
    /// Answer when the run is finished, or as it is when this time is over: `30s`, `500ms`, or seconds. At most 5 minutes. When left
    /// out the answer comes as soon as the run is accepted.
    #[param(example = "30s")]
    wait: Option<String>,
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

/// Times are milliseconds here, and their fields say so.
fn renamed(error: Error) -> Error {
    match error.field() {
        Some(field) if field == "timeout" || field.ends_with(".timeout") => {
            let field = format!("{field}_ms");
            error.at(field)
        }
        _ => error,
    }
}

async fn submitted(
    http: &Http,
    caller: Principal,
    headers: &HeaderMap,
    Submitting { wait }: Submitting,
    request: v1::SubmitRunRequest,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    let wait = wait.map(|text| wait_time("wait", &text, MAX_WAIT)).transpose()?;
    let request_waits = wait.is_some();
    let request = v1::SubmitRunRequest { wait: wait.and_then(|wait| wait.try_into().ok()), ..request };
    let answer = http.calls.submit_run(caller, request, cause(headers)).await.map_err(renamed)?;
    let finished = answer.run.clone().filter(|run| request_waits && run.finished_at.is_some());
    let status = if finished.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(Submitted { run: finished.map(Into::into), ..answer.into() })))
}

/// Sends a message to the session's agent. It is accepted when this answers; follow the run, or wait for it.
#[utoipa::path(post, path = "/sessions/{session}/messages", tag = "runs", operation_id = "send_message",
    params(("session" = String, Path, description = "Id or name."), ("idempotency-key" = Option<String>, Header, description = "Makes repeats safe: the same key with the same request gives the same run, for at least 24 hours."), Submitting),
    request_body = NewMessage,
    responses((status = 202, body = Submitted, description = "Accepted."), (status = 200, body = Submitted, description = "Finished already."), (status = 409, body = ErrorBody, description = "The session is closed or busy, or the key was used for another request."), Refusals, Unreadable))]
pub(super) async fn send_message(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    headers: HeaderMap,
    IdempotencyKey(key): IdempotencyKey,
    Params(submitting): Params<Submitting>,
    Input(message): Input<NewMessage>,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    submitted(&http, caller, &headers, submitting, message.into_request(session, key)?).await
}

/// Submits a run: a list of tool calls, or a message.
#[utoipa::path(post, path = "/sessions/{session}/runs", tag = "runs", operation_id = "submit_run",
    params(("session" = String, Path, description = "Id or name."), ("idempotency-key" = Option<String>, Header, description = "Makes repeats safe: the same key with the same request gives the same run, for at least 24 hours."), Submitting),
    request_body = NewRun,
    responses((status = 202, body = Submitted, description = "Accepted."), (status = 200, body = Submitted, description = "Finished already."), (status = 409, body = ErrorBody, description = "The session is closed or busy, or the key was used for another request."), Refusals, Unreadable))]
pub(super) async fn submit(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayWrite>,
    Segment(session): Segment,
    headers: HeaderMap,
    IdempotencyKey(key): IdempotencyKey,
    Params(submitting): Params<Submitting>,
    Input(run): Input<NewRun>,
) -> Outcome<(StatusCode, Json<Submitted>)> {
    submitted(&http, caller, &headers, submitting, run.into_request(session, key)?).await
}

/// Runs, newest first.
#[utoipa::path(get, path = "/runs", tag = "runs", operation_id = "list_runs", params(Listing),
    responses((status = 200, body = RunPage), Refusals))]
pub(super) async fn list(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Params(Listing { session, states: names, page_size, page_token }): Params<Listing>,
) -> Outcome<Json<RunPage>> {
    let request = v1::ListRunsRequest { session, states: states(&names)?, page_size, page_token };
    Ok(Json(http.calls.list_runs(caller, request).await?.into()))
}

/// The runs of a session, newest first.
#[utoipa::path(get, path = "/sessions/{session}/runs", tag = "runs", operation_id = "list_session_runs",
    params(("session" = String, Path, description = "Id or name."), SessionListing),
    responses((status = 200, body = RunPage), Refusals))]
pub(super) async fn of_session(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(session): Segment,
    Params(SessionListing { states: names, page_size, page_token }): Params<SessionListing>,
) -> Outcome<Json<RunPage>> {
    let request = v1::ListRunsRequest { session, states: states(&names)?, page_size, page_token };
    Ok(Json(http.calls.list_runs(caller, request).await?.into()))
}

/// One run, with what it and the runs below it have spent.
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs", operation_id = "get_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Run), Refusals))]
pub(super) async fn get(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Run>> {
    let answer = http.calls.get_run(caller, v1::GetRunRequest { run_id }).await?;
    Ok(Json(answer.run.unwrap_or_default().into()))
}

/// Where the time and the money of a run went, from what the store remembers.
#[utoipa::path(get, path = "/runs/{run_id}/trace", tag = "runs", operation_id = "get_run_trace",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Trace), Refusals))]
pub(super) async fn trace(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Trace>> {
    let request = v1::GetRunTraceRequest { run_id, without_children: false };
    Ok(Json(http.calls.get_run_trace(caller, request).await?.into()))
}

/// What a run did, step by step.
#[utoipa::path(get, path = "/runs/{run_id}/steps", tag = "runs", operation_id = "list_steps",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = StepList), Refusals))]
pub(super) async fn steps(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<StepList>> {
    Ok(Json(http.calls.list_steps(caller, v1::ListStepsRequest { run_id }).await?.into()))
}

/// Asks for a run to stop. One that nobody executes is cancelled at once; `cancel` of the run says how far that has got.
#[utoipa::path(post, path = "/runs/{run_id}/cancel", tag = "runs", operation_id = "cancel_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")), request_body(content = Option<CancelRequest>),
    responses((status = 202, body = Run), (status = 200, body = Run, description = "It was finished: nothing was cancelled."), Refusals, Unreadable))]
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

/// Answers when the run is finished, or with its state at that moment when the time is over.
#[utoipa::path(get, path = "/runs/{run_id}/wait", tag = "runs", operation_id = "wait_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…"), Waiting),
    responses((status = 200, body = Waited), Refusals))]
pub(super) async fn wait(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
    Params(Waiting { timeout }): Params<Waiting>,
) -> Outcome<Json<Waited>> {
    let max_wait = timeout.map(|text| wait_time("timeout", &text, MAX_WAIT)).transpose()?;
    let max_wait = max_wait.and_then(|wait| wait.try_into().ok());
    Ok(Json(http.calls.wait_run(caller, v1::WaitRunRequest { run_id, max_wait }).await?.into()))
}

/// Why is this run not finished?
#[utoipa::path(get, path = "/runs/{run_id}/explain", tag = "runs", operation_id = "explain_run",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")),
    responses((status = 200, body = Explanation), Refusals))]
pub(super) async fn explain(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(run_id): Segment,
) -> Outcome<Json<Explanation>> {
    Ok(Json(http.calls.explain_run(caller, v1::ExplainRunRequest { run_id }).await?.into()))
}

/// Sets how much a run and those below it may spend, in all, and lets them go on if they waited for more.
#[utoipa::path(put, path = "/runs/{run_id}/budget", tag = "runs", operation_id = "set_run_budget",
    params(("run_id" = String, Path, pattern = "^run_[0-9a-z]{26}$", description = "run_…")), request_body = Limit,
    responses((status = 200, body = BudgetSet), (status = 409, body = ErrorBody, description = "The run is over."), Refusals, Unreadable))]
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

/// A text that a step names by its hash.
#[utoipa::path(get, path = "/contents/{hash}", tag = "runs", operation_id = "get_content",
    params(("hash" = String, Path, pattern = "^[0-9a-f]{64}$", description = "64 hexadecimal digits.")),
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"), Refusals))]
pub(super) async fn content(
    State(http): State<Http>,
    Caller(caller, ..): Caller<MayRead>,
    Segment(hash): Segment,
) -> Outcome<([(HeaderName, &'static str); 1], String)> {
    let answer = http.calls.get_content(caller, v1::GetContentRequest { hash }).await?;
    // What a hash names never changes.
    Ok(([(CACHE_CONTROL, "private, max-age=31536000, immutable")], answer.text))
}
