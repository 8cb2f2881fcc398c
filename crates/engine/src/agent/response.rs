//! Turns a model response into message parts, and decides which of its tool calls are made.

use remuda_domain::{
    Code, ToolCallId,
    agent::AgentPolicy,
    error::Error,
    limits,
    message::{Part, Reasoning},
    permission::Unattended,
    run::Failure,
    tool::{CallStatus, ToolCall, ToolOutcome},
};
use remuda_models::{Response, ToolRequest};
use remuda_permissions::{Ask, Verdict};
use remuda_tools::Registry;
use serde_json::{Value, json};

use super::repeated_calls::RepeatedCalls;
use crate::approvals;

/// A tool call that a model requested.
#[derive(Debug)]
pub(super) struct RequestedCall {
    pub(super) call: ToolCall,
    pub(super) decision: CallDecision,
}

/// What happens to a requested call.
#[derive(Debug)]
pub(super) enum CallDecision {
    Execute,
    /// Only after approval.
    NeedsApproval(Ask),
    /// Not at all, for this reason.
    Refused(ToolOutcome),
}

/// Decides about requested calls. Every problem becomes a result that the model sees.
pub(super) struct CallChecker<'a> {
    pub(super) tools: &'a Registry,
    pub(super) policy: &'a AgentPolicy,
    pub(super) repeated_calls: &'a RepeatedCalls,
    /// The verdict of the permission rules on a call.
    pub(super) verdict: &'a dyn Fn(&ToolCall) -> Verdict,
    pub(super) unattended: Unattended,
    /// The agent has no steps left in which it could see a result.
    pub(super) concluding: bool,
}

impl CallChecker<'_> {
    pub(super) fn check_all(&self, requests: Vec<ToolRequest>) -> Vec<RequestedCall> {
        requests.into_iter().enumerate().map(|(index, request)| self.check_one(index, request)).collect()
    }

    fn check_one(&self, index: usize, request: ToolRequest) -> RequestedCall {
        let (arguments, malformed) = match request.arguments {
            Ok(arguments) => (Value::Object(arguments), None),
            Err(raw) => {
                let shown = json!({ "not_json": raw });
                (shown, Some(Error::invalid("arguments", "expected a JSON object: the call was not made")))
            }
        };
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: request.name,
            arguments,
            parallel: self.policy.parallel_tool_calls,
            timeout: self.policy.tool_timeout,
        };
        let checked = malformed.map_or_else(|| self.validate(index, &call), Err);
        let decision = match checked.and_then(|()| self.decide(&call)) {
            Ok(decision) => decision,
            Err(error) => {
                let failure = Failure::new(error.code(), error.to_string());
                CallDecision::Refused(ToolOutcome::without_result(&call, CallStatus::Failed, Some(failure)))
            }
        };
        RequestedCall { call, decision }
    }

    fn validate(&self, index: usize, call: &ToolCall) -> Result<(), Error> {
        if self.concluding {
            let message = "no steps are left: the call was not made";
            return Err(Error::new(Code::ToolsDisabled, message));
        }
        if index >= limits::MAX_CALLS {
            let message =
                format!("only {} calls are made at once: ask again for the others", limits::MAX_CALLS);
            return Err(Error::new(Code::TooLarge, message));
        }
        let Some(tool) = self.tools.get(&call.tool) else {
            let names: Vec<&str> = self.tools.names().collect();
            let message = format!("there is no tool {}; there are {}", call.tool, names.join(", "));
            return Err(Error::new(Code::UnknownTool, message));
        };
        if !tool.descriptor().polls && self.repeated_calls.is_over_limit(call) {
            let message = "this call gave the same result three times, and nothing new came in between: try something else";
            return Err(Error::new(Code::RepeatedCall, message));
        }
        tool.validate(&call.arguments)
    }

    fn decide(&self, call: &ToolCall) -> Result<CallDecision, Error> {
        let ask = approvals::required((self.verdict)(call), self.unattended)?;
        Ok(ask.map_or(CallDecision::Execute, CallDecision::NeedsApproval))
    }
}

/// The parts of the message that stores a response.
pub(super) fn response_parts(response: &Response, requested: &[RequestedCall], model: &str) -> Vec<Part> {
    let thoughts = response.reasoning.iter().map(|reasoning| Part::Reasoning {
        reasoning: Reasoning { model: model.to_owned(), ..reasoning.clone() },
    });
    let text = (!response.text.is_empty()).then(|| Part::text(response.text.clone()));
    let tool_calls = requested.iter().map(|requested| Part::ToolUse { call: requested.call.clone() });
    thoughts.chain(text).chain(tool_calls).collect()
}

#[cfg(test)]
mod tests {
    use remuda_tools::ToolOptions;
    use serde_json::Map;

    use super::*;

    fn refusal(requested: &RequestedCall) -> Option<&ToolOutcome> {
        match &requested.decision {
            CallDecision::Refused(outcome) => Some(outcome),
            CallDecision::Execute | CallDecision::NeedsApproval(_) => None,
        }
    }

    #[test]
    fn invalid_call_is_refused_with_a_result() {
        let tools = Registry::native(&ToolOptions::default());
        let (policy, repeated_calls) = (AgentPolicy::default(), RepeatedCalls::default());
        let checker = CallChecker {
            tools: &tools,
            policy: &policy,
            repeated_calls: &repeated_calls,
            verdict: &|_| Verdict::Allow,
            unattended: Unattended::Wait,
            concluding: false,
        };
        let request = |name: &str, arguments| ToolRequest { name: name.into(), arguments };
        let good = Map::from_iter([("command".to_owned(), json!("true"))]);
        let requested = checker.check_all(vec![
            request("Bash", Ok(good.clone())),
            request("Bash", Ok(Map::new())),
            request("Bash", Err("{\"comm".into())),
            request("Launch", Ok(Map::new())),
        ]);
        let code = |requested: &RequestedCall| {
            let outcome = refusal(requested)?;
            outcome.failure.as_ref().map(|failure| failure.code.clone())
        };
        let codes: Vec<Option<String>> = requested.iter().map(code).collect();
        let invalid = Some("invalid_argument".to_owned());
        assert_eq!(codes, [None, invalid.clone(), invalid, Some("unknown_tool".to_owned())]);
        let last = CallChecker { concluding: true, ..checker };
        assert!(refusal(&last.check_all(vec![request("Bash", Ok(good))])[0]).is_some());
    }
}
