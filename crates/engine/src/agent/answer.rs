//! What a model answered, and which of the calls it wants are made.

use remuda_domain::{
    ApprovalId, Code, ToolCallId,
    agent::AgentPolicy,
    approval::{self, ApprovalRequest},
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

use super::repeats::Repeats;

/// A call that a model wants.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) call: ToolCall,
    pub(super) fate: Fate,
}

/// What becomes of it.
#[derive(Debug)]
pub(super) enum Fate {
    Made,
    /// Not before someone has allowed it.
    Asked(Ask),
    /// Not at all, and this is why.
    Refused(ToolOutcome),
}

/// Decides about wanted calls. Whatever is wrong with one is a result that the model sees.
pub(super) struct Judge<'a> {
    pub(super) tools: &'a Registry,
    pub(super) policy: &'a AgentPolicy,
    pub(super) repeats: &'a Repeats,
    /// What the rules say about a call.
    pub(super) verdict: &'a dyn Fn(&ToolCall) -> Verdict,
    pub(super) unattended: Unattended,
    /// The agent has no steps left to see a result in.
    pub(super) concluding: bool,
}

impl Judge<'_> {
    pub(super) fn wanted(&self, requests: Vec<ToolRequest>) -> Vec<Wanted> {
        requests.into_iter().enumerate().map(|(index, request)| self.judge(index, request)).collect()
    }

    fn judge(&self, index: usize, request: ToolRequest) -> Wanted {
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
        let checked = malformed.map_or_else(|| self.check(index, &call), Err);
        let fate = match checked.and_then(|()| self.permit(&call)) {
            Ok(fate) => fate,
            Err(error) => {
                let failure = Failure::new(error.code(), error.to_string());
                Fate::Refused(ToolOutcome::without_result(&call, CallStatus::Failed, Some(failure)))
            }
        };
        Wanted { call, fate }
    }

    fn check(&self, index: usize, call: &ToolCall) -> Result<(), Error> {
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
        if self.repeats.too_often(call) {
            let message = "this very call gave the same result three times in a row: try something else";
            return Err(Error::new(Code::RepeatedCall, message));
        }
        tool.validate(&call.arguments)
    }

    fn permit(&self, call: &ToolCall) -> Result<Fate, Error> {
        match (self.verdict)(call) {
            Verdict::Allow => Ok(Fate::Made),
            Verdict::Deny(denial) => Err(Error::new(Code::CallDenied, denial.why)),
            Verdict::Ask(ask) if self.unattended == Unattended::Wait => Ok(Fate::Asked(ask)),
            Verdict::Ask(ask) => {
                let message = format!("the call needs someone's approval, and nobody is there: {}", ask.why);
                Err(Error::new(Code::ApprovalUnattended, message))
            }
        }
    }
}

/// The question to people about a call.
pub(super) fn approval_request(
    call: &ToolCall,
    ask: Ask,
    agent: &str,
    approvers: Vec<String>,
) -> (ApprovalId, ApprovalRequest) {
    let request = ApprovalRequest {
        call: call.id,
        tool: call.tool.clone(),
        arguments: call.arguments.clone(),
        call_hash: approval::call_hash(&call.tool, &call.arguments),
        agent: agent.to_owned(),
        permission: ask.permission,
        patterns: ask.patterns,
        always: ask.always,
        why: ask.why,
        approvers,
    };
    (ApprovalId::new(), request)
}

/// The parts of the message that an answer becomes.
pub(super) fn parts(response: &Response, wanted: &[Wanted], model: &str) -> Vec<Part> {
    let thoughts = response.reasoning.iter().map(|reasoning| Part::Reasoning {
        reasoning: Reasoning { model: model.to_owned(), ..reasoning.clone() },
    });
    let text = (!response.text.is_empty()).then(|| Part::text(response.text.clone()));
    let uses = wanted.iter().map(|wanted| Part::ToolUse { call: wanted.call.clone() });
    thoughts.chain(text).chain(uses).collect()
}

#[cfg(test)]
mod tests {
    use remuda_tools::ToolOptions;
    use serde_json::Map;

    use super::*;

    fn refusal(wanted: &Wanted) -> Option<&ToolOutcome> {
        match &wanted.fate {
            Fate::Refused(outcome) => Some(outcome),
            Fate::Made | Fate::Asked(_) => None,
        }
    }

    #[test]
    fn what_is_wrong_with_a_call_is_a_result() {
        let tools = Registry::native(&ToolOptions::default());
        let (policy, repeats) = (AgentPolicy::default(), Repeats::default());
        let judge = Judge {
            tools: &tools,
            policy: &policy,
            repeats: &repeats,
            verdict: &|_| Verdict::Allow,
            unattended: Unattended::Wait,
            concluding: false,
        };
        let request = |name: &str, arguments| ToolRequest { name: name.into(), arguments };
        let good = Map::from_iter([("command".to_owned(), json!("true"))]);
        let wanted = judge.wanted(vec![
            request("Bash", Ok(good.clone())),
            request("Bash", Ok(Map::new())),
            request("Bash", Err("{\"comm".into())),
            request("Launch", Ok(Map::new())),
        ]);
        let code = |wanted: &Wanted| {
            let outcome = refusal(wanted)?;
            outcome.failure.as_ref().map(|failure| failure.code.clone())
        };
        let codes: Vec<Option<String>> = wanted.iter().map(code).collect();
        let invalid = Some("invalid_argument".to_owned());
        assert_eq!(codes, [None, invalid.clone(), invalid, Some("unknown_tool".to_owned())]);
        let last = Judge { concluding: true, ..judge };
        assert!(refusal(&last.wanted(vec![request("Bash", Ok(good))])[0]).is_some());
    }
}
