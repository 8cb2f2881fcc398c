use std::time::Duration;

use remuda_domain::{
    Error, Labels, RunId, RunInput, error::Result, identity::Principal, page::PageRequest,
    trace::TraceContext,
};
use remuda_proto::{
    convert,
    v1::{self, set_budget_request::Of as BudgetOf, submit_run_request::Input},
};
use remuda_store::RunFilter;
use remuda_trace::HistorySpan;

use super::{Calls, page_size::fit, sessions::permissions};
use crate::app::{
    BudgetRef, CurrentStep, Estimate, PoolPosition, Receipt, SessionRequirements, Submission, Wait,
};

const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// The longest that a caller can wait for a run.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(5 * 60);

fn input(input: Option<Input>) -> Result<(RunInput, usize)> {
    match input {
        Some(Input::Tools(tools)) => {
            let bytes = tools.calls.iter().map(|call| call.arguments.len()).sum();
            Ok((RunInput::Tools(convert::tools_input(tools)?), bytes))
        }
        Some(Input::Message(message)) => {
            let bytes = convert::message_bytes(&message);
            Ok((RunInput::Message(convert::message_input(message)?), bytes))
        }
        None => Err(Error::invalid("input", "expected tools or a message")),
    }
}

/// Longer waits are cut to the maximum: callers that wait long have to call again anyway.
fn wait_duration(field: &'static str, wait: Option<Duration>) -> Result<Duration> {
    Ok(wait.ok_or_else(|| Error::invalid(field, "expected 0 to 5 minutes"))?.min(MAX_WAIT))
}

fn submission(body: v1::SubmitRunRequest, cause: Option<TraceContext>) -> Result<Submission> {
    // Every field is named, so that a new one cannot be forgotten here.
    let v1::SubmitRunRequest {
        session,
        create_session,
        idempotency_key,
        if_busy,
        input: request_input,
        timeout,
        execution,
        workspace,
        model,
        budget,
        permissions: session_permissions,
        wait,
        labels,
    } = body;
    let (input, input_bytes) = input(request_input)?;
    Ok(Submission {
        session,
        create_session,
        requirements: SessionRequirements {
            execution: convert::execution_choice(execution)?,
            workspace,
            model,
            permissions: permissions(session_permissions)?,
        },
        input,
        input_bytes,
        timeout: timeout.map(|timeout| convert::from_duration("timeout", timeout)).transpose()?,
        if_busy: convert::if_busy(if_busy)?,
        idempotency_key: (!idempotency_key.is_empty()).then_some(idempotency_key),
        cause,
        budget: budget.map(|limit| convert::limit("budget", limit)).transpose()?,
        labels: Labels::new(labels)?,
        wait: wait.map(|wait| wait_duration("wait", convert::plain_duration(wait))).transpose()?,
    })
}

fn wait(wait: Wait) -> v1::Wait {
    v1::Wait {
        kind: wait.kind.to_owned(),
        id: wait.id,
        message: wait.message,
        hint: wait.hint,
        session_id: wait.session.map(|session| session.to_string()).unwrap_or_default(),
        agent: wait.agent,
        tool: wait.tool,
        state: wait.state.map(|state| state.to_string()).unwrap_or_default(),
        since: wait.since.map(convert::timestamp),
        expires_at: wait.expires_at.map(convert::timestamp),
        budget: wait.budget.map(Into::into),
        needed_tokens: wait.needed.tokens,
        needed_micros: wait.needed.micros,
    }
}

fn receipt(receipt: Receipt) -> v1::Receipt {
    v1::Receipt { name: receipt.name.to_owned(), at: Some(convert::timestamp(receipt.at)) }
}

fn place(place: PoolPosition) -> v1::QueuePlace {
    v1::QueuePlace {
        pool: place.pool,
        ahead: place.place.ahead,
        at_least: place.place.at_least,
        slots: place.slots,
        free_slots: place.free_slots,
    }
}

pub(super) fn step_glance(step: CurrentStep) -> v1::StepGlance {
    v1::StepGlance {
        index: step.index,
        kind: step.kind.to_owned(),
        name: step.name,
        started_at: Some(convert::timestamp(step.started_at)),
        finished_at: step.finished_at.map(convert::timestamp),
    }
}

fn estimate(estimate: Estimate) -> v1::Estimate {
    v1::Estimate {
        message: estimate.message(),
        of: estimate.of.to_owned(),
        about: estimate.about.and_then(convert::to_duration),
        basis: estimate.basis,
        at_latest: estimate.at_latest.map(convert::timestamp),
    }
}

impl Calls {
    pub(crate) async fn submit_run(
        &self,
        caller: Principal,
        body: v1::SubmitRunRequest,
        cause: Option<TraceContext>,
    ) -> Result<v1::SubmitRunResponse> {
        let receipt = self.app.submit(&caller, submission(body, cause)?).await?;
        Ok(v1::SubmitRunResponse {
            run: Some(receipt.run.into()),
            deduplicated: receipt.deduplicated,
            interrupted_run_ids: receipt.interrupted.iter().map(ToString::to_string).collect(),
            first_cursor: receipt.first_cursor,
        })
    }

    pub(crate) async fn get_run(
        &self,
        caller: Principal,
        body: v1::GetRunRequest,
    ) -> Result<v1::GetRunResponse> {
        let run = self.app.get_run(&caller, body.run_id.parse()?).await?;
        let (_, tree_spent) = self.app.run_totals(&caller, run.id).await?;
        let run = v1::Run { tree_spent: Some(tree_spent.into()), ..run.into() };
        Ok(v1::GetRunResponse { run: Some(run) })
    }

    pub(crate) async fn get_run_trace(
        &self,
        caller: Principal,
        body: v1::GetRunTraceRequest,
    ) -> Result<v1::GetRunTraceResponse> {
        let trace = self.app.trace(&caller, body.run_id.parse()?, !body.without_children).await?;
        let span = |(run, span): (RunId, HistorySpan)| {
            let HistorySpan { session, span, open } = span;
            let attributes = span.attributes.into_iter();
            v1::TraceSpan {
                span_id: span.context.span.to_string(),
                parent_span_id: span.parent.map(|parent| parent.to_string()).unwrap_or_default(),
                name: span.name.into_owned(),
                started_at: Some(convert::timestamp(span.start)),
                ended_at: (!open).then(|| convert::timestamp(span.end)),
                failure: span.failure.unwrap_or_default(),
                attributes: attributes.map(|it| (it.key.to_string(), it.value.to_string())).collect(),
                run_id: run.to_string(),
                session_id: session.to_string(),
            }
        };
        Ok(v1::GetRunTraceResponse {
            trace_id: trace.context.trace.to_string(),
            sampled: trace.context.sampled,
            spans: trace.spans.into_iter().map(span).collect(),
            truncated: trace.truncated,
            now: Some(convert::timestamp(trace.now)),
        })
    }

    pub(crate) async fn list_runs(
        &self,
        caller: Principal,
        body: v1::ListRunsRequest,
    ) -> Result<v1::ListRunsResponse> {
        let page = PageRequest::parse(body.page_size, &body.page_token)?;
        let states = body.states.iter().map(|state| convert::run_state("states", *state));
        let filter = RunFilter {
            session: None,
            states: states.collect::<Result<_>>()?,
            labels: Labels::new(body.labels)?,
        };
        let page = self.app.list_runs(&caller, &body.session, filter, &page).await?;
        let (runs, next_page_token) = fit(page, |run: &v1::Run| run.id.clone());
        Ok(v1::ListRunsResponse { runs, next_page_token })
    }

    pub(crate) async fn list_steps(
        &self,
        caller: Principal,
        body: v1::ListStepsRequest,
    ) -> Result<v1::ListStepsResponse> {
        let steps = self.app.list_steps(&caller, body.run_id.parse()?).await?;
        Ok(v1::ListStepsResponse { steps: steps.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn get_content(
        &self,
        caller: Principal,
        body: v1::GetContentRequest,
    ) -> Result<v1::GetContentResponse> {
        let text = self.app.get_content(&caller, body.hash.parse()?).await?;
        Ok(v1::GetContentResponse { text })
    }

    pub(crate) async fn cancel_run(
        &self,
        caller: Principal,
        body: v1::CancelRunRequest,
    ) -> Result<v1::CancelRunResponse> {
        let cancelled = self.app.cancel_run(&caller, body.run_id.parse()?, body.reason).await?;
        Ok(v1::CancelRunResponse {
            run: Some(cancelled.run.into()),
            already_finished: cancelled.already_finished,
        })
    }

    pub(crate) async fn wait_run(
        &self,
        caller: Principal,
        body: v1::WaitRunRequest,
    ) -> Result<v1::WaitRunResponse> {
        let run: RunId = body.run_id.parse()?;
        let max_wait = match body.max_wait {
            Some(wait) => wait_duration("max_wait", convert::plain_duration(wait))?,
            None => DEFAULT_WAIT,
        };
        let run = self.app.wait_run(&caller, run, max_wait).await?;
        let finished = run.state.is_terminal();
        Ok(v1::WaitRunResponse { run: Some(run.into()), finished })
    }

    pub(crate) async fn set_budget(
        &self,
        caller: Principal,
        body: v1::SetBudgetRequest,
    ) -> Result<v1::SetBudgetResponse> {
        let of = match body.of {
            Some(BudgetOf::RunId(run)) => BudgetRef::Run(run.parse()?),
            Some(BudgetOf::Session(session)) => BudgetRef::Session(session),
            None => return Err(Error::invalid("of", "expected a run or a session")),
        };
        let missing = || Error::invalid("limit", "expected how many tokens, how much money, or both");
        let limit = convert::limit("limit", body.limit.ok_or_else(missing)?)?;
        let change = self.app.set_budget(&caller, of, limit).await?;
        Ok(v1::SetBudgetResponse {
            budget: Some(change.budget.into()),
            resumed_run_ids: change.resumed.iter().map(ToString::to_string).collect(),
        })
    }

    pub(crate) async fn explain_run(
        &self,
        caller: Principal,
        body: v1::ExplainRunRequest,
    ) -> Result<v1::ExplainRunResponse> {
        let answer = self.app.explain(&caller, body.run_id.parse()?).await?;
        Ok(v1::ExplainRunResponse {
            run_id: body.run_id,
            state: v1::RunState::from(answer.state).into(),
            reason: answer.reason.to_owned(),
            message: answer.message,
            waits_for: answer.waits_for,
            position: answer.position,
            hint: answer.hint,
            receipts: answer.receipts.into_iter().map(receipt).collect(),
            waits: answer.waits.into_iter().map(wait).collect(),
            place: answer.place.map(place),
            since: answer.since.map(convert::timestamp),
            step: answer.step.map(step_glance),
            estimate: answer.estimate.map(estimate),
        })
    }
}
