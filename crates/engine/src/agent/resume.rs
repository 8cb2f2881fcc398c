//! Where a run stands: decided from its steps alone.

use std::collections::HashSet;

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
    asking::Place,
    control::SWITCH,
    delegation::Sent,
    repeats::Repeats,
    scene::{Scene, Stage},
    summing::Shortened,
    transcript,
};
use crate::{patiently, plan, stand::Stand};

/// What earlier owners left of a run.
#[derive(Debug, Default)]
struct Left<'a> {
    /// The newest question, unless it was answered.
    unanswered: Option<&'a Step>,
    /// The newest answer, unless there was a question after it.
    answer: Option<&'a ModelOutcome>,
    /// Questions that the acting agent had answered since it was its turn.
    answered: u32,
    acting: Option<&'a str>,
    /// The last message whose results were left out.
    cleared: Option<MessageId>,
    /// Children that a question told of.
    reported: HashSet<RunId>,
}

fn left(steps: &[Step]) -> Left<'_> {
    let mut left = Left::default();
    for step in steps {
        let StepWork::ModelCall { request, outcome } = &step.work else { continue };
        if !request.purpose.is_answer() {
            continue;
        }
        if left.acting != Some(&request.agent) {
            left.answered = 0;
            left.acting = Some(&request.agent);
        }
        left.answer = outcome.as_deref();
        left.unanswered = outcome.is_none().then_some(step);
        left.answered += u32::from(outcome.as_ref().is_some_and(|outcome| !says_nothing(outcome)));
        left.reported.extend(&request.reported);
        left.cleared = request.cleared;
    }
    left
}

/// Neither a word nor a call.
fn says_nothing(outcome: &ModelOutcome) -> bool {
    let says = |part: &Part| match part {
        Part::Text { text } => !text.trim().is_empty(),
        Part::ToolUse { .. } => true,
        _ => false,
    };
    !outcome.parts.iter().any(says)
}

fn calls_of(answer: Option<&ModelOutcome>) -> Vec<ToolCall> {
    let parts = answer.into_iter().flat_map(|answer| &answer.parts);
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

impl<'a> AgentRun<'a> {
    /// Prepares a run to go on where it stands, or to begin.
    pub(super) async fn resume(
        stand: Stand<'a>,
        stage: Stage,
        scene: Scene,
        input: &MessageInput,
    ) -> Result<Self> {
        let (engine, grant) = (stand.engine, stand.grant);
        let fence = grant.fence;
        let abandon = &stand.control.abandon;
        let load = || transcript::load(&*engine.store, fence.tenant, fence.session);
        let said = patiently(abandon, load).await?;
        let mut earlier = Vec::new();
        for run in transcript::runs_to_repair(&said) {
            if run != grant.run.id {
                earlier.extend(patiently(abandon, || engine.store.list_steps(fence.tenant, run)).await?);
            }
        }
        let left = left(&grant.steps);
        let unanswered = left.unanswered.and_then(|step| match &step.work {
            StepWork::ModelCall { request, .. } => Some((step, request)),
            StepWork::ToolCall { .. } => None,
        });
        let announced = unanswered.map(|(step, request)| Place {
            step: step.id,
            message: request.message,
            index: step.index,
        });
        // The question tells of them however often it is asked.
        let reported = unanswered.map(|(_, request)| request.reported.clone()).unwrap_or_default();
        let calls = calls_of(left.answer);
        let steps = u32::try_from(grant.steps.len()).unwrap_or(u32::MAX);
        let last = grant.steps.iter().map(|step| step.index + 1).max().unwrap_or(0).max(steps);
        let (slots, interrupted) =
            plan::resume(&calls, &grant.steps, last, fence.epoch, |tool| stand.effects(tool));
        let mut repeats = Repeats::default();
        let mut outcomes: Vec<ToolOutcome> = Vec::new();
        let (mut switches, mut children, mut background) = (0, 0, Vec::new());
        for step in &grant.steps {
            switches += u32::from(is_switch(step));
            if let (Some(call), Some(child)) =
                (step.call(), step.links().and_then(|links| links.child.as_ref()))
            {
                children += 1;
                if child.background && !left.reported.contains(&child.run) {
                    background.push(Sent { call: call.id, child: child.clone(), ended: false });
                }
            }
            let current = step.call().is_some_and(|call| calls.iter().any(|it| it.id == call.id));
            if let (Some(call), Some(outcome), false) = (step.call(), step.call_outcome(), current) {
                repeats.note(call, outcome);
                outcomes.push(outcome.clone());
            }
        }
        let next_index = last + u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let answered = left.answered;
        let speechless = left.answer.is_some_and(says_nothing);
        // An answer without calls is the last one, as far as the agent knows.
        let concluded = answered >= scene.agent.policy.max_steps
            || (left.answer.is_some() && calls.is_empty() && !speechless);
        let begun =
            left.answer.is_some() || announced.is_some() || said.iter().any(|message| message.id == input.id);
        // They may have been said with a summary, before the next question; or be summed up themselves, together with their calls.
        let told = calls.first().is_some_and(|call| {
            let answered = said.iter().rev().any(|it| it.answers(call.id));
            answered || !said.iter().any(|it| it.uses().any(|it| it.id == call.id))
        });
        let mut run = Self {
            stand,
            stage,
            scene,
            said,
            earlier,
            pending: Vec::new(),
            announced,
            shortened: Shortened { cleared: left.cleared, ..Shortened::default() },
            answered,
            speechless,
            next_index,
            slots,
            interrupted,
            repeats,
            switches,
            successor: None,
            children,
            background,
            reported,
            notices: Vec::new(),
            with_question: Vec::new(),
            outcomes,
            unsaved: Vec::new(),
            spent: Vec::new(),
            concluded,
            failure: None,
        };
        run.failure = run.fatal_refusal();
        if told {
            run.collect_results();
        }
        // The user's message enters the transcript together with the first question.
        if !begun {
            run.say(input.id, Role::User, input.parts.clone());
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

    fn question(index: u32, outcome: Option<ModelOutcome>) -> Step {
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
        });
        let work = StepWork::ModelCall { request, outcome: outcome.map(Box::new) };
        let at = Timestamp::UNIX_EPOCH;
        Step { id: StepId::new(), index, work, started_at: at, finished_at: None, epoch: 1 }
    }

    fn answer(calls: usize) -> ModelOutcome {
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
    fn steps_say_where_a_run_stands() {
        assert!(left(&[]).answer.is_none() && left(&[]).unanswered.is_none());
        let steps = [question(0, None)];
        assert_eq!(left(&steps).unanswered.map(|step| step.index), Some(0));
        let steps = [question(0, Some(answer(2)))];
        assert_eq!((left(&steps).answered, calls_of(left(&steps).answer).len()), (1, 2));
        assert!(left(&steps).unanswered.is_none());
        let steps = [question(0, Some(answer(2))), question(3, None)];
        let left = left(&steps);
        assert_eq!((left.answered, left.unanswered.unwrap().index), (1, 3));
        assert!(calls_of(left.answer).is_empty(), "the calls of an older answer are over");
    }
}
