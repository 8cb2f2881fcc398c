//! Agents that go round in circles.

use remuda_domain::{
    Code,
    tool::{ToolCall, ToolOutcome},
};
use serde_json::Value;

/// A call that gave the same result this often in a row is not made again.
const MAX_SAME: u32 = 3;
/// Looking again is what this tool is for.
const FOR_LOOKING_AGAIN: &str = "BashOutput";

/// The newest call with its result, and how often in a row it was that.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    last: Option<(String, Value, Value)>,
    count: u32,
}

impl Repeats {
    /// Takes note of a result. That a call was not made again is none: it would open the way for the next one.
    pub(super) fn note(&mut self, call: &ToolCall, outcome: &ToolOutcome) {
        if outcome.failure.as_ref().is_some_and(|failure| failure.code == Code::RepeatedCall.as_str()) {
            return;
        }
        let failure = outcome.failure.as_ref().map(|failure| Value::from(failure.code.as_str()));
        let result = failure.unwrap_or_else(|| outcome.output.clone());
        let now = (call.tool.clone(), call.arguments.clone(), result);
        if self.last.as_ref() == Some(&now) {
            self.count += 1;
        } else {
            *self = Self { last: Some(now), count: 1 };
        }
    }

    /// Whether making this call again would be one time too many.
    pub(super) fn too_often(&self, call: &ToolCall) -> bool {
        let same = self
            .last
            .as_ref()
            .is_some_and(|(tool, arguments, _)| *tool == call.tool && *arguments == call.arguments);
        same && self.count >= MAX_SAME && call.tool != FOR_LOOKING_AGAIN
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{ToolCallId, tool::CallStatus};
    use serde_json::json;

    use super::*;

    fn call(command: &str) -> ToolCall {
        ToolCall {
            id: ToolCallId::new(),
            tool: "Bash".into(),
            arguments: json!({ "command": command }),
            parallel: false,
            timeout: None,
        }
    }

    fn outcome(call: &ToolCall, output: &str) -> ToolOutcome {
        ToolOutcome {
            output: output.into(),
            ..ToolOutcome::without_result(call, CallStatus::Completed, None)
        }
    }

    #[test]
    fn the_same_call_with_the_same_result_is_made_three_times() {
        let mut repeats = Repeats::default();
        let same = call("ls");
        for _ in 0..3 {
            assert!(!repeats.too_often(&same));
            repeats.note(&same, &outcome(&same, "a"));
        }
        assert!(repeats.too_often(&call("ls")));
        assert!(!repeats.too_often(&call("pwd")));
        repeats.note(&same, &outcome(&same, "b"));
        assert!(!repeats.too_often(&same), "something changes");
    }
}
