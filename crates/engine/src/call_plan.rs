//! The plan of a list of tool calls: which have results, and which are still to be executed.
//!
//! It is built once, from the calls and the steps that earlier owners committed.

use remuda_domain::{
    Epoch, StepId, Timestamp,
    step::{CallLinks, Step, StepWork},
    tool::{Effects, ToolCall, ToolOutcome},
};

use crate::journal::now;

/// One tool call with its known state.
#[derive(Debug)]
pub(crate) struct PlannedCall {
    id: StepId,
    index: u32,
    pub(crate) call: ToolCall,
    pub(crate) outcome: Option<ToolOutcome>,
    pub(crate) links: CallLinks,
    started_at: Timestamp,
    finished_at: Option<Timestamp>,
    epoch: Epoch,
    /// Whether the store has this step in its current state.
    pub(crate) stored: bool,
}

impl PlannedCall {
    pub(crate) fn new(call: ToolCall, index: u32, epoch: Epoch) -> Self {
        Self {
            id: StepId::new(),
            index,
            call,
            outcome: None,
            links: CallLinks::default(),
            started_at: now(),
            finished_at: None,
            epoch,
            stored: false,
        }
    }

    /// The call with the state that an earlier owner committed.
    fn of_step(call: ToolCall, step: &Step) -> Self {
        Self {
            id: step.id,
            index: step.index,
            call,
            outcome: step.call_outcome().cloned(),
            links: step.links().cloned().unwrap_or_default(),
            started_at: step.started_at,
            finished_at: step.finished_at,
            epoch: step.epoch,
            stored: true,
        }
    }

    /// The id of the call's step.
    pub(crate) const fn id(&self) -> StepId {
        self.id
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.is_some()
    }

    /// The call as it is executed: the approver may have edited its arguments.
    pub(crate) fn effective(&self) -> ToolCall {
        let mut call = self.call.clone();
        if let Some(arguments) = &self.links.edited {
            call.arguments = arguments.clone();
        }
        call
    }

    /// How long ago the call was started, by the local clock.
    pub(crate) fn age_ms(&self) -> u64 {
        u64::try_from((now() - self.started_at).num_milliseconds()).unwrap_or_default()
    }

    pub(crate) fn start(&mut self, epoch: Epoch) {
        self.started_at = now();
        self.epoch = epoch;
    }

    /// Records the call's outcome, for the next commit.
    pub(crate) fn finish(&mut self, outcome: ToolOutcome) {
        self.outcome = Some(outcome);
        self.finished_at = Some(now());
        self.stored = false;
    }

    pub(crate) fn to_step(&self) -> Step {
        let work = StepWork::ToolCall {
            call: self.call.clone(),
            outcome: self.outcome.clone(),
            links: self.links.clone(),
        };
        Step {
            id: self.id,
            index: self.index,
            work,
            started_at: self.started_at,
            finished_at: self.finished_at,
            epoch: self.epoch,
        }
    }
}

/// The calls in order, with the state that earlier owners committed. New calls get step indexes from `first_index`
/// on. Returns the plan, and the positions of calls that were found interrupted.
pub(crate) fn resume(
    calls: &[ToolCall],
    earlier: &[Step],
    first_index: u32,
    epoch: Epoch,
    effects: impl Fn(&str) -> Effects,
) -> (Vec<PlannedCall>, Vec<usize>) {
    let mut interrupted = Vec::new();
    let plan = calls.iter().zip(first_index..).enumerate().map(|(position, (call, index))| {
        let step = earlier.iter().find(|step| step.call().is_some_and(|it| it.id == call.id));
        let Some(step) = step else {
            return PlannedCall::new(call.clone(), index, epoch);
        };
        let mut planned = PlannedCall::of_step(call.clone(), step);
        if !planned.is_done() && !planned.links.is_harmless() && !effects(&call.tool).repeatable() {
            planned.finish(ToolOutcome::interrupted(call, "was lost"));
            interrupted.push(position);
        }
        planned
    });
    let plan = plan.collect();
    (plan, interrupted)
}

/// Splits calls into groups that run in parallel: neighbouring parallel calls form one group, any other call is a
/// group of its own.
pub(crate) fn groups(plan: &[PlannedCall]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, planned) in plan.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if planned.call.parallel && plan[group.start].call.parallel => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use remuda_domain::{ToolCallId, tool::CallStatus};
    use serde_json::json;

    use super::*;

    fn call(tool: &str, parallel: bool) -> ToolCall {
        ToolCall { id: ToolCallId::new(), tool: tool.into(), arguments: json!({}), parallel, timeout: None }
    }

    fn effects(tool: &str) -> Effects {
        if tool == "Bash" { Effects::Mutating } else { Effects::ReadOnly }
    }

    #[test]
    fn neighbouring_parallel_calls_form_a_group() {
        let flags = [false, true, true, false, true, false, false];
        let plan: Vec<PlannedCall> =
            flags.iter().map(|parallel| PlannedCall::new(call("noop", *parallel), 0, 1)).collect();
        assert_eq!(groups(&plan), [0..1, 1..3, 3..4, 4..5, 5..6, 6..7]);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn new_owner_repeats_only_repeatable_calls() {
        let calls = [call("Bash", false), call("Read", false), call("Bash", false), call("Bash", false)];
        let (mut first, _) = resume(&calls, &[], 5, 1, effects);
        let done = ToolOutcome::without_result(&calls[0], CallStatus::Completed, None);
        first[0].finish(done.clone());
        // Call 0 finished, calls 1 and 2 were committed as intents, call 3 was not reached.
        let earlier: Vec<Step> = first.iter().take(3).map(PlannedCall::to_step).collect();
        let (plan, interrupted) = resume(&calls, &earlier, 5, 2, effects);
        assert_eq!(plan[0].outcome, Some(done));
        assert!(!plan[1].is_done(), "a read is repeated");
        assert_eq!(plan[2].outcome.as_ref().unwrap().status, CallStatus::Interrupted);
        assert!(!plan[3].is_done() && !plan[3].stored);
        assert_eq!(interrupted, [2]);
        assert_eq!((plan[1].id, plan[1].index, plan[3].index), (earlier[1].id, 6, 8));
    }
}
