//! What is left to do of a run: decided once, from its input and the steps of earlier owners.

use remuda_domain::{
    Epoch, StepId,
    step::{Step, StepKind},
    tool::{Effects, ToolCall, ToolOutcome},
};

use crate::journal::now;

/// One call with what is known of it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) step: Step,
    /// Whether the store has this step, finished or not.
    pub(crate) stored: bool,
}

impl Slot {
    pub(crate) fn is_done(&self) -> bool {
        self.step.outcome.is_some()
    }

    /// Records how the call ended.
    pub(crate) fn finish(&mut self, outcome: ToolOutcome) {
        self.step.outcome = Some(outcome);
        self.step.finished_at = Some(now());
    }
}

/// The calls of a run in order, with what earlier owners left. Returns the slots and the indices of calls that were found
/// interrupted.
pub(crate) fn resume(
    calls: &[ToolCall],
    earlier: &[Step],
    epoch: Epoch,
    effects: impl Fn(&str) -> Effects,
) -> (Vec<Slot>, Vec<usize>) {
    let mut interrupted = Vec::new();
    let slots = calls.iter().enumerate().map(|(index, call)| {
        let found = earlier.iter().find(|step| step.call.id == call.id);
        let Some(step) = found else {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let step = Step {
                id: StepId::new(),
                index,
                kind: StepKind::ToolCall,
                call: call.clone(),
                outcome: None,
                started_at: now(),
                finished_at: None,
                epoch,
            };
            return Slot { step, stored: false };
        };
        let mut slot = Slot { step: step.clone(), stored: true };
        if !slot.is_done() && !effects(&call.tool).repeatable() {
            slot.finish(ToolOutcome::interrupted(call, "was lost"));
            interrupted.push(index);
        }
        slot
    });
    let slots = slots.collect();
    (slots, interrupted)
}

/// Cuts calls into groups that run together: neighbouring parallel calls form one group, any other is alone.
pub(crate) fn groups(calls: &[ToolCall]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if call.parallel && calls[group.start].parallel => group.end = index + 1,
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
        let calls: Vec<ToolCall> = flags.iter().map(|parallel| call("noop", *parallel)).collect();
        assert_eq!(groups(&calls), [0..1, 1..3, 3..4, 4..5, 5..6, 6..7]);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn a_new_owner_repeats_only_what_can_be_repeated() {
        let calls = [call("Bash", false), call("Read", false), call("Bash", false), call("Bash", false)];
        let (mut first, _) = resume(&calls, &[], 1, effects);
        let done = ToolOutcome::without_result(&calls[0], CallStatus::Completed, None);
        first[0].finish(done.clone());
        // Call 0 finished, calls 1 and 2 were announced, call 3 was not reached.
        let earlier: Vec<Step> = first.iter().take(3).map(|slot| slot.step.clone()).collect();
        let (slots, interrupted) = resume(&calls, &earlier, 2, effects);
        assert_eq!(slots[0].step.outcome, Some(done));
        assert!(!slots[1].is_done(), "a read is repeated");
        assert_eq!(slots[2].step.outcome.as_ref().unwrap().status, CallStatus::Interrupted);
        assert!(!slots[3].is_done() && !slots[3].stored);
        assert_eq!(interrupted, [2]);
        assert_eq!(slots[1].step.id, earlier[1].id);
    }
}
