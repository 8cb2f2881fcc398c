//! Detects agents that repeat calls without progress: one call, a set of calls, or several in turn.
//!
//! Progress is a result that is not among the last ones. Without progress, a call that keeps giving the same result is
//! refused. Polling tools are exempt.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use remuda_domain::{
    Code,
    tool::{ToolCall, ToolOutcome},
};

/// A call is refused that gave the same result this often, the first time included.
const MAX_REPEATS: u32 = 3;
/// Results that are remembered: a longer cycle of calls is not noticed.
const REMEMBERED: usize = 64;

/// A result of a call. Only hashes are kept, as arguments and results can be large.
#[derive(Debug)]
struct KnownResult {
    call: u64,
    result: u64,
    /// How often it occurred since the last progress.
    repeats: u32,
}

/// The last results of a run's calls, the most recent last.
#[derive(Debug, Default)]
pub(super) struct RepeatedCalls(VecDeque<KnownResult>);

impl RepeatedCalls {
    /// Counts a result. A refusal as repeated does not count: it would allow the next repetition.
    pub(super) fn record(&mut self, call: &ToolCall, outcome: &ToolOutcome) {
        if outcome.failure.as_ref().is_some_and(|failure| failure.code == Code::RepeatedCall.as_str()) {
            return;
        }
        let call = call_hash(call);
        let result = match &outcome.failure {
            Some(failure) => hash(&(1, &failure.code)),
            None => hash(&(0, &outcome.output)),
        };
        let known = self.0.iter().position(|known| (known.call, known.result) == (call, result));
        let repeats = match known.and_then(|position| self.0.remove(position)) {
            Some(known) => known.repeats + 1,
            None => {
                for known in &mut self.0 {
                    known.repeats = 0;
                }
                1
            }
        };
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(KnownResult { call, result, repeats });
    }

    /// Whether this call would exceed the limit.
    pub(super) fn is_over_limit(&self, call: &ToolCall) -> bool {
        let call = call_hash(call);
        let last = self.0.iter().rev().find(|known| known.call == call);
        last.is_some_and(|known| known.repeats >= MAX_REPEATS)
    }
}

fn call_hash(call: &ToolCall) -> u64 {
    hash(&(&call.tool, &call.arguments))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
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

    /// Makes calls until one is refused. Returns how many were made.
    fn made_until_refusal(calls: impl Iterator<Item = (String, String)>) -> usize {
        let mut repeated_calls = RepeatedCalls::default();
        calls
            .take(1000)
            .take_while(|(command, output)| {
                let call = call(command);
                let allowed = !repeated_calls.is_over_limit(&call);
                repeated_calls.record(&call, &outcome(&call, output));
                allowed
            })
            .count()
    }

    fn cycle(commands: &'static [&'static str]) -> impl Iterator<Item = (String, String)> {
        commands.iter().cycle().map(|command| ((*command).to_owned(), format!("output of {command}")))
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

    #[test]
    fn sets_and_alternations_of_calls_are_refused() {
        assert_eq!(made_until_refusal(cycle(&["ls"])), 3);
        // The first one counts from the progress that the last one of the set made.
        assert_eq!(made_until_refusal(cycle(&["ls", "pwd"])), 2 * 3 + 1);
        assert_eq!(made_until_refusal(cycle(&["a", "b", "c", "d", "e"])), 5 * 3 + 4);
    }

    #[test]
    fn result_that_alternates_is_no_progress() {
        let flapping = (0..).map(|n| ("status".to_owned(), format!("state {}", n % 2)));
        assert_eq!(made_until_refusal(flapping), 6);
    }

    #[test]
    fn repetitions_between_new_results_are_allowed() {
        let edits_and_tests = (0..).map(|n| match n % 2 {
            0 => (format!("edit {n}"), "ok".to_owned()),
            _ => ("test".to_owned(), "2 failures".to_owned()),
        });
        assert_eq!(made_until_refusal(edits_and_tests), 1000);
    }
}
