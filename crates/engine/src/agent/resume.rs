//! Resumes a run: derives its state from the committed steps alone.

use std::collections::HashSet;

use remuda_dispatch::retry_until_abandoned;
use remuda_domain::{
    MessageId, RunId,
    error::Result,
    message::{Part, Role},
    run::MessageInput,
    step::{ModelOutcome, Step, StepWork},
    tool::{CallStatus, ToolCall, ToolOutcome},
};

use super::{
    AgentRun,
    agent_tools::SWITCH,
    compaction::CompactionState,
    delegation::BackgroundChild,
    model_call::ModelCallIds,
    repeated_calls::RepeatedCalls,
    run_setup::{ActiveAgent, RunSetup},
    transcript,
};
use crate::{call_plan, run_context::RunContext};

/// Where earlier owners left a run.
#[derive(Debug, Default)]
struct ResumePoint<'a> {
    /// The last model call, if it has no response.
    unanswered: Option<&'a Step>,
    /// The last response, if no model call followed it.
    last_response: Option<&'a ModelOutcome>,
    /// Responses that the active agent got since it became active.
    steps_taken: u32,
    agent: Option<&'a str>,
    /// The last message whose tool results were cleared.
    cleared: Option<MessageId>,
    /// Children that a model call reported.
    reported: HashSet<RunId>,
}

fn resume_point(steps: &[Step]) -> ResumePoint<'_> {
    let mut resume_point = ResumePoint::default();
    for step in steps {
        let StepWork::ModelCall { request, outcome } = &step.work else { continue };
        if !request.purpose.is_answer() {
            continue;
        }
        if resume_point.agent != Some(&request.agent) {
            resume_point.steps_taken = 0;
            resume_point.agent = Some(&request.agent);
        }
        resume_point.last_response = outcome.as_deref();
        resume_point.unanswered = outcome.is_none().then_some(step);
        resume_point.steps_taken +=
            u32::from(outcome.as_ref().is_some_and(|outcome| !is_empty_response(outcome)));
        resume_point.reported.extend(&request.reported);
        resume_point.cleared = request.cleared;
    }
    resume_point
}

/// Neither text nor a tool call.
fn is_empty_response(outcome: &ModelOutcome) -> bool {
    let has_content = |part: &Part| match part {
        Part::Text { text } => !text.trim().is_empty(),
        Part::ToolUse { .. } => true,
        _ => false,
    };
    !outcome.parts.iter().any(has_content)
}

fn calls_of(response: Option<&ModelOutcome>) -> Vec<ToolCall> {
    let parts = response.into_iter().flat_map(|response| &response.parts);
    let calls = parts.filter_map(|part| match part {
        Part::ToolUse { call } => Some(call.clone()),
        _ => None,
    });
    calls.collect()
}

fn is_switch(step: &Step) -> bool {
    let completed = step.call_outcome().is_some_and(|outcome| outcome.status == CallStatus::Completed);
    completed && step.call().is_some_and(|call| call.tool == SWITCH)
}

fn is_summary(step: &Step) -> bool {
    let StepWork::ModelCall { request, outcome: Some(outcome) } = &step.work else { return false };
    !request.purpose.is_answer() && outcome.status == CallStatus::Completed
}

impl<'a> AgentRun<'a> {
    /// Prepares a run to begin, or to resume where it was left.
    pub(super) async fn resume(
        ctx: RunContext<'a>,
        setup: RunSetup,
        active: ActiveAgent,
        input: &MessageInput,
    ) -> Result<Self> {
        let (engine, grant) = (ctx.engine, ctx.grant);
        let fence = grant.fence;
        let abandon = &ctx.control.abandon;
        let load = || transcript::load(&*engine.store, fence.tenant, fence.session);
        let transcript = retry_until_abandoned(abandon, load).await?;
        let mut repair_steps = Vec::new();
        for run in transcript::runs_to_repair(&transcript) {
            if run != grant.run.id {
                repair_steps.extend(
                    retry_until_abandoned(abandon, || engine.store.list_steps(fence.tenant, run)).await?,
                );
            }
        }
        let resume_point = resume_point(&grant.steps);
        let unanswered = resume_point.unanswered.and_then(|step| match &step.work {
            StepWork::ModelCall { request, .. } => Some((step, request)),
            StepWork::ToolCall { .. } => None,
        });
        let unanswered_ids = unanswered.map(|(step, request)| ModelCallIds {
            step: step.id,
            message: request.message,
            index: step.index,
        });
        // The repeated model call reports them again.
        let reported = unanswered.map(|(_, request)| request.reported.clone()).unwrap_or_default();
        let calls = calls_of(resume_point.last_response);
        let steps = u32::try_from(grant.steps.len()).unwrap_or(u32::MAX);
        let last = grant.steps.iter().map(|step| step.index + 1).max().unwrap_or(0).max(steps);
        let (plan, interrupted) =
            call_plan::resume(&calls, &grant.steps, last, fence.epoch, |tool| ctx.effects(tool));
        let mut repeated_calls = RepeatedCalls::default();
        let mut outcomes: Vec<ToolOutcome> = Vec::new();
        let (mut switches, mut delegations, mut background) = (0, 0, Vec::new());
        for step in &grant.steps {
            switches += u32::from(is_switch(step));
            if is_summary(step) {
                repeated_calls = RepeatedCalls::default();
            }
            if let (Some(call), Some(child)) =
                (step.call(), step.links().and_then(|links| links.child.as_ref()))
            {
                delegations += 1;
                if child.background && !resume_point.reported.contains(&child.run) {
                    background.push(BackgroundChild { call: call.id, child: child.clone(), ended: false });
                }
            }
            let current = step.call().is_some_and(|call| calls.iter().any(|it| it.id == call.id));
            if let (Some(call), Some(outcome), false) = (step.call(), step.call_outcome(), current) {
                repeated_calls.record(call, outcome);
                outcomes.push(outcome.clone());
            }
        }
        let next_index = last + u32::try_from(plan.len()).unwrap_or(u32::MAX);
        let steps_taken = resume_point.steps_taken;
        let last_response_empty = resume_point.last_response.is_some_and(is_empty_response);
        // A response without calls was meant to be the last one.
        let concluded = steps_taken >= active.agent.policy.max_steps
            || (resume_point.last_response.is_some() && calls.is_empty() && !last_response_empty);
        let has_begun = resume_point.last_response.is_some()
            || unanswered_ids.is_some()
            || transcript.iter().any(|message| message.id == input.id);
        // The results may have been committed with a summary before the next model call, or been summarized together
        // with their calls.
        let already_appended = calls.first().is_some_and(|call| {
            let has_result = transcript.iter().rev().any(|it| it.has_result_for(call.id));
            has_result || !transcript.iter().any(|it| it.tool_calls().any(|it| it.id == call.id))
        });
        let mut run = Self {
            ctx,
            setup,
            active,
            transcript,
            repair_steps,
            pending_messages: Vec::new(),
            unanswered: unanswered_ids,
            compaction: CompactionState { cleared: resume_point.cleared, ..CompactionState::default() },
            steps_taken,
            last_response_empty,
            next_index,
            plan,
            interrupted,
            repeated_calls,
            switches,
            successor: None,
            delegations,
            background,
            reported,
            notices: Vec::new(),
            next_call_events: Vec::new(),
            outcomes,
            pending_steps: Vec::new(),
            spent: Vec::new(),
            concluded,
            failure: None,
        };
        run.failure = run.fatal_refusal();
        if already_appended {
            run.collect_results();
        }
        // The user's message enters the transcript together with the first model call.
        if !has_begun {
            run.append_message(input.id, Role::User, input.parts.clone());
        }
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{
        MessageId, StepId, Timestamp, ToolCallId,
        content::ContentHash,
        model::ModelParameters,
        step::{ModelRequest, Purpose},
        tool::CallStatus,
    };
    use serde_json::json;

    use super::*;

    fn model_step(index: u32, outcome: Option<ModelOutcome>) -> Step {
        let hash = ContentHash::of("");
        let request = Box::new(ModelRequest {
            message: MessageId::new(),
            agent: "build".into(),
            definitions: hash,
            model: "platform/m".parse().unwrap(),
            provider: None,
            model_name: "m".into(),
            parameters: ModelParameters::default(),
            system: hash,
            tools: hash,
            messages: Vec::new(),
            concluding: false,
            purpose: Purpose::Answer,
            reported: Vec::new(),
            cleared: None,
            retry: None,
        });
        let work = StepWork::ModelCall { request, outcome: outcome.map(Box::new) };
        let at = Timestamp::UNIX_EPOCH;
        Step { id: StepId::new(), index, work, started_at: at, finished_at: None, epoch: 1 }
    }

    fn response(calls: usize) -> ModelOutcome {
        let call = || ToolCall {
            id: ToolCallId::new(),
            tool: "Read".into(),
            arguments: json!({}),
            parallel: true,
            timeout: None,
        };
        let parts = (0..calls).map(|_| Part::ToolUse { call: call() }).collect();
        ModelOutcome { parts, ..ModelOutcome::without_answer(CallStatus::Completed, None) }
    }

    #[test]
    fn resume_point_is_derived_from_the_steps() {
        assert!(resume_point(&[]).last_response.is_none() && resume_point(&[]).unanswered.is_none());
        let steps = [model_step(0, None)];
        assert_eq!(resume_point(&steps).unanswered.map(|step| step.index), Some(0));
        let steps = [model_step(0, Some(response(2)))];
        assert_eq!(
            (resume_point(&steps).steps_taken, calls_of(resume_point(&steps).last_response).len()),
            (1, 2)
        );
        assert!(resume_point(&steps).unanswered.is_none());
        let steps = [model_step(0, Some(response(2))), model_step(3, None)];
        let resume_point = resume_point(&steps);
        assert_eq!((resume_point.steps_taken, resume_point.unanswered.unwrap().index), (1, 3));
        assert!(calls_of(resume_point.last_response).is_empty(), "calls of an older response are over");
    }
}
