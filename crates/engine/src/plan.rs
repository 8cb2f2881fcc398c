//! What is left to do of some calls: decided once, from the calls and the steps of earlier owners.

use remuda_domain::{
    Epoch, StepId, Timestamp,
    step::{CallLinks, Step, StepWork},
    tool::{Effects, ToolCall, ToolOutcome},
};

use crate::journal::now;

/// One call with what is known of it.
#[derive(Debug)]
pub(crate) struct Slot {
    id: StepId,
    index: u32,
    pub(crate) call: ToolCall,
    pub(crate) outcome: Option<ToolOutcome>,
    pub(crate) links: CallLinks,
    started_at: Timestamp,
    finished_at: Option<Timestamp>,
    epoch: Epoch,
    /// Whether the store has this step as it is.
    pub(crate) stored: bool,
}

impl Slot {
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

    /// The call with what an earlier owner left of it.
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

    /// Of the step.
    pub(crate) const fn id(&self) -> StepId {
        self.id
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.is_some()
    }

    /// The call as it is made: whoever approved it may have changed it.
    pub(crate) fn effective(&self) -> ToolCall {
        let mut call = self.call.clone();
        if let Some(arguments) = &self.links.edited {
            call.arguments = arguments.clone();
        }
        call
    }

    /// How long ago it was started, by our clock.
    pub(crate) fn age_ms(&self) -> u64 {
        u64::try_from((now() - self.started_at).num_milliseconds()).unwrap_or_default()
    }

    pub(crate) fn start(&mut self, epoch: Epoch) {
        self.started_at = now();
        self.epoch = epoch;
    }

    /// Records how the call ended, for the next commit.
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

/// The calls in order, with what earlier owners left. New ones get the steps from `first_index` on. Returns the slots and the
/// indices of calls that were found interrupted.
pub(crate) fn resume(
    calls: &[ToolCall],
    earlier: &[Step],
    first_index: u32,
    epoch: Epoch,
    effects: impl Fn(&str) -> Effects,
) -> (Vec<Slot>, Vec<usize>) {
    let mut interrupted = Vec::new();
    let slots = calls.iter().zip(first_index..).enumerate().map(|(position, (call, index))| {
        let found = earlier.iter().find(|step| step.call().is_some_and(|it| it.id == call.id));
        let Some(step) = found else {
            return Slot::new(call.clone(), index, epoch);
        };
        let mut slot = Slot::of_step(call.clone(), step);
        if !slot.is_done() && !slot.links.is_harmless() && !effects(&call.tool).repeatable() {
            slot.finish(ToolOutcome::interrupted(call, "was lost"));
            interrupted.push(position);
        }
        slot
    });
    let slots = slots.collect();
    (slots, interrupted)
}

/// Cuts calls into groups that run together: neighbouring parallel calls form one group, any other is alone.
pub(crate) fn groups(slots: &[Slot]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if slot.call.parallel && slots[group.start].call.parallel => group.end = index + 1,
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
        let slots: Vec<Slot> =
            flags.iter().map(|parallel| Slot::new(call("noop", *parallel), 0, 1)).collect();
        assert_eq!(groups(&slots), [0..1, 1..3, 3..4, 4..5, 5..6, 6..7]);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn a_new_owner_repeats_only_what_can_be_repeated() {
        let calls = [call("Bash", false), call("Read", false), call("Bash", false), call("Bash", false)];
        let (mut first, _) = resume(&calls, &[], 5, 1, effects);
        let done = ToolOutcome::without_result(&calls[0], CallStatus::Completed, None);
        first[0].finish(done.clone());
        // Call 0 finished, calls 1 and 2 were announced, call 3 was not reached.
        let earlier: Vec<Step> = first.iter().take(3).map(Slot::to_step).collect();
        let (slots, interrupted) = resume(&calls, &earlier, 5, 2, effects);
        assert_eq!(slots[0].outcome, Some(done));
        assert!(!slots[1].is_done(), "a read is repeated");
        assert_eq!(slots[2].outcome.as_ref().unwrap().status, CallStatus::Interrupted);
        assert!(!slots[3].is_done() && !slots[3].stored);
        assert_eq!(interrupted, [2]);
        assert_eq!((slots[1].id, slots[1].index, slots[3].index), (earlier[1].id, 6, 8));
    }
}
