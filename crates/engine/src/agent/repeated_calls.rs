//! Detects agents that repeat the same call without progress.

use remuda_domain::{
    Code,
    tool::{ToolCall, ToolOutcome},
};
use serde_json::Value;

/// A call that gave the same result this often in a row is refused.
const MAX_REPEATS: u32 = 3;

/// The last call with its result, and how often in a row it occurred.
#[derive(Debug, Default)]
pub(super) struct RepeatedCalls {
    last: Option<(String, Value, Value)>,
    count: u32,
}

impl RepeatedCalls {
    /// Counts a result. A refusal as repeated does not count: it would allow the next repetition.
    pub(super) fn record(&mut self, call: &ToolCall, outcome: &ToolOutcome) {
        if outcome.failure.as_ref().is_some_and(|failure| failure.code == Code::RepeatedCall.as_str()) {
            return;
        }
        let failure = outcome.failure.as_ref().map(|failure| Value::from(failure.code.as_str()));
        let result = failure.unwrap_or_else(|| outcome.output.clone());
        let current = (call.tool.clone(), call.arguments.clone(), result);
        if self.last.as_ref() == Some(&current) {
            self.count += 1;
        } else {
            *self = Self { last: Some(current), count: 1 };
        }
    }

    /// Whether this call would exceed the limit.
    pub(super) fn is_over_limit(&self, call: &ToolCall) -> bool {
        let same = self
            .last
            .as_ref()
            .is_some_and(|(tool, arguments, _)| *tool == call.tool && *arguments == call.arguments);
        same && self.count >= MAX_REPEATS
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
    fn same_call_with_the_same_result_is_refused_after_three_times() {
        let mut repeated_calls = RepeatedCalls::default();
        let same = call("ls");
        for _ in 0..3 {
            assert!(!repeated_calls.is_over_limit(&same));
            repeated_calls.record(&same, &outcome(&same, "a"));
        }
        assert!(repeated_calls.is_over_limit(&call("ls")));
        assert!(!repeated_calls.is_over_limit(&call("pwd")));
        repeated_calls.record(&same, &outcome(&same, "b"));
        assert!(!repeated_calls.is_over_limit(&same), "the result changed");
    }
}
