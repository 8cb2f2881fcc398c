//! What was said in a session, and its way to the model.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Error, MessageId, RunId, RunState, SessionId, TenantId, ToolCallId,
    error::Result,
    message::{Message, Part, Role},
    page::PageRequest,
    step::{Sent, Step},
    tool::ToolOutcome,
};
use remuda_store::{NewMessage, Store};

/// Messages read at once, and bytes of them in all: more could not be sent to any model.
const PAGE: u32 = 500;
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// One message as far as a model is concerned.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) id: MessageId,
    pub(super) run: Option<RunId>,
    pub(super) role: Role,
    pub(super) agent: Option<String>,
    pub(super) parts: Vec<Part>,
}

impl Said {
    pub(super) fn new(message: &NewMessage, run: RunId) -> Self {
        let NewMessage { id, role, agent, parts } = message.clone();
        Self { id, run: Some(run), role, agent, parts }
    }

    fn uses(&self) -> impl Iterator<Item = &remuda_domain::tool::ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse { call } => Some(call),
            _ => None,
        })
    }

    fn results(&self) -> impl Iterator<Item = &ToolOutcome> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        })
    }
}

/// Reads what was said in a session.
pub(super) async fn load(store: &dyn Store, tenant: TenantId, session: SessionId) -> Result<Vec<Said>> {
    let mut said = Vec::new();
    let mut bytes = 0;
    let mut page = PageRequest { size: PAGE, token: None };
    loop {
        let messages = store.list_messages(tenant, session, &page).await?;
        for message in messages.items {
            bytes += size(&message);
            let Message { id, run, role, agent, parts, .. } = message;
            said.push(Said { id, run, role, agent, parts });
        }
        if bytes > MAX_BYTES {
            return Err(Error::new(
                remuda_domain::Code::ContextTooLong,
                format!("the session's messages are longer than {MAX_BYTES} bytes: go on in a new session"),
            ));
        }
        match messages.next {
            Some(token) => page.token = Some(token),
            None => return Ok(said),
        }
    }
}

fn size(message: &Message) -> usize {
    serde_json::to_string(&message.parts).map_or(0, |text| text.len())
}

/// A message as it is sent: as it stands in the transcript, or changed for the purpose.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outgoing {
    /// Missing for what is not in the transcript like this.
    pub(super) stored: Option<MessageId>,
    pub(super) role: Role,
    pub(super) parts: Vec<Part>,
}

impl Outgoing {
    pub(super) fn given(role: Role, parts: Vec<Part>) -> Self {
        Self { stored: None, role, parts }
    }
}

/// Runs whose calls have no results in the transcript: their workers were lost.
pub(super) fn runs_to_repair(said: &[Said]) -> HashSet<RunId> {
    dangling(said).filter_map(|message| message.run).collect()
}

fn dangling(said: &[Said]) -> impl Iterator<Item = &Said> {
    said.iter().enumerate().filter_map(|(index, message)| {
        let answered: HashSet<ToolCallId> =
            said.get(index + 1).into_iter().flat_map(Said::results).map(|outcome| outcome.id).collect();
        let is_open =
            message.role == Role::Assistant && message.uses().any(|call| !answered.contains(&call.id));
        is_open.then_some(message)
    })
}

/// Gives every call exactly one result: what the steps of its run know, or that it was never made. Without it no provider would take
/// the history any more.
pub(super) fn repair(said: &[Said], steps: &[Step]) -> Vec<Outgoing> {
    let known: HashMap<ToolCallId, &ToolOutcome> =
        steps.iter().filter_map(Step::call_outcome).map(|outcome| (outcome.id, outcome)).collect();
    let mut outgoing = Vec::with_capacity(said.len());
    let mut messages = said.iter().peekable();
    while let Some(message) = messages.next() {
        let stored = Outgoing { stored: Some(message.id), role: message.role, parts: message.parts.clone() };
        if message.role != Role::Assistant || message.uses().next().is_none() {
            outgoing.push(stored);
            continue;
        }
        outgoing.push(stored);
        // Calls that someone else made have their results with them.
        let next = messages.next_if(|next| next.role == Role::Tool && next.uses().next().is_none());
        let given: HashMap<ToolCallId, &ToolOutcome> =
            next.into_iter().flat_map(Said::results).map(|outcome| (outcome.id, outcome)).collect();
        if let Some(next) = next
            && message.uses().all(|call| given.contains_key(&call.id))
        {
            outgoing.push(Outgoing { stored: Some(next.id), role: next.role, parts: next.parts.clone() });
            continue;
        }
        let results = message.uses().map(|call| {
            let outcome = given.get(&call.id).or_else(|| known.get(&call.id)).copied().cloned();
            // A call without a step had no effects: those that can have some are announced.
            let never_made = || ToolOutcome::unreached(call, RunState::Failed);
            Part::ToolResult { outcome: outcome.unwrap_or_else(never_made) }
        });
        outgoing.push(Outgoing::given(Role::Tool, results.collect()));
    }
    outgoing
}

/// What the record of a model call says of the messages that were sent.
pub(super) fn record(outgoing: &[Outgoing]) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    for message in outgoing {
        match (message.stored, sent.last_mut()) {
            (Some(id), Some(Sent::Stored { last, count, .. })) => {
                *last = id;
                *count += 1;
            }
            (Some(id), _) => sent.push(Sent::Stored { first: id, last: id, count: 1 }),
            (None, _) => sent.push(Sent::Given { role: message.role, parts: message.parts.clone() }),
        }
    }
    sent
}

/// Whether the session's agent is another one than when something was last said, before its newest user message.
pub(super) fn agent_changed(said: &[Said], agent: &str) -> bool {
    let Some(newest) = said.iter().rposition(|message| message.role == Role::User) else { return false };
    let before = said[..newest].iter().rev().find_map(|message| message.agent.as_deref());
    before.is_some_and(|before| before != agent)
}

/// Tells the agent something with the newest message of the user, before what the user says.
pub(super) fn remind(outgoing: &mut [Outgoing], reminder: &str) {
    if let Some(newest) = outgoing.iter_mut().rev().find(|message| message.role == Role::User) {
        newest.stored = None;
        let text = format!("<system_reminder>\n{}\n</system_reminder>", reminder.trim());
        newest.parts.insert(0, Part::text(text));
    }
}

/// Tells the agent something after all that was said: with the newest results of its calls, or else by itself.
pub(super) fn add(outgoing: &mut Vec<Outgoing>, text: &str) {
    match outgoing.last_mut().filter(|message| message.role == Role::Tool) {
        Some(results) => {
            results.stored = None;
            results.parts.push(Part::text(text));
        }
        None => outgoing.push(Outgoing::given(Role::User, vec![Part::text(text)])),
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::tool::{CallStatus, ToolCall};
    use serde_json::json;

    use super::*;

    fn call(tool: &str) -> ToolCall {
        ToolCall {
            id: ToolCallId::new(),
            tool: tool.into(),
            arguments: json!({}),
            parallel: true,
            timeout: None,
        }
    }

    fn done(call: &ToolCall) -> ToolOutcome {
        ToolOutcome::without_result(call, CallStatus::Completed, None)
    }

    fn said(role: Role, agent: &str, parts: Vec<Part>) -> Said {
        Said { id: MessageId::new(), run: Some(RunId::new()), role, agent: Some(agent.into()), parts }
    }

    fn user(agent: &str, text: &str) -> Said {
        said(Role::User, agent, vec![Part::text(text)])
    }

    fn results(message: &Outgoing) -> Vec<(ToolCallId, CallStatus)> {
        let outcomes = message.parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some((outcome.id, outcome.status)),
            _ => None,
        });
        outcomes.collect()
    }

    #[test]
    fn a_whole_history_is_sent_as_it_stands() {
        let one = call("Read");
        let history = [
            user("build", "hello"),
            said(Role::Assistant, "build", vec![Part::ToolUse { call: one.clone() }]),
            said(Role::Tool, "build", vec![Part::ToolResult { outcome: done(&one) }]),
            said(Role::Assistant, "build", vec![Part::text("done")]),
        ];
        assert!(runs_to_repair(&history).is_empty());
        let outgoing = repair(&history, &[]);
        let sent = record(&outgoing);
        assert_eq!(sent, [Sent::Stored { first: history[0].id, last: history[3].id, count: 4 }]);
    }

    #[test]
    fn every_call_gets_exactly_one_result() {
        let (kept, known, lost) = (call("Read"), call("Bash"), call("Edit"));
        let uses = [&kept, &known, &lost].map(|call| Part::ToolUse { call: call.clone() });
        let partial = said(Role::Tool, "build", vec![Part::ToolResult { outcome: done(&kept) }]);
        let history = [
            user("build", "hello"),
            said(Role::Assistant, "build", uses.to_vec()),
            partial,
            user("build", "are you there?"),
        ];
        assert_eq!(runs_to_repair(&history), HashSet::from([history[1].run.unwrap()]));
        let slot = {
            let mut slot = crate::plan::Slot::new(known.clone(), 1, 1);
            slot.finish(done(&known));
            slot.to_step()
        };
        let outgoing = repair(&history, &[slot]);
        let expected = [
            (kept.id, CallStatus::Completed),
            (known.id, CallStatus::Completed),
            (lost.id, CallStatus::Skipped),
        ];
        assert_eq!(results(&outgoing[2]), expected);
        assert_eq!(outgoing.len(), 4);
        assert_eq!(outgoing[2].stored, None);
        // Nothing at all was recorded after the calls.
        let outgoing = repair(&history[..2], &[]);
        assert_eq!(results(&outgoing[2]).len(), 3);
    }

    #[test]
    fn an_agent_is_reminded_once_after_a_switch() {
        let history = [
            user("plan", "make a plan"),
            said(Role::Assistant, "plan", vec![Part::text("here")]),
            user("build", "build it"),
        ];
        assert!(agent_changed(&history, "build"));
        assert!(!agent_changed(&history[..1], "plan"), "never when a session begins");
        let mut outgoing = repair(&history, &[]);
        remind(&mut outgoing, "You build now.");
        assert_eq!(outgoing[2].parts.len(), 2);
        assert!(outgoing[2].stored.is_none() && outgoing[0].stored.is_some());
        let later = [
            history.to_vec(),
            vec![said(Role::Assistant, "build", vec![Part::text("built")]), user("build", "thanks")],
        ]
        .concat();
        assert!(!agent_changed(&later, "build"));
    }
}
