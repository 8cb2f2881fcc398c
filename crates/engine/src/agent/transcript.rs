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

use super::context;

/// Messages read at once, and bytes of them in all: more could not be sent to any model.
const PAGE: u32 = 500;
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// What a model is told of children in the background begins with this. It stands where the user speaks, who did not say it.
pub(super) const NOTICE: &str = "<task_notification>";

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

    pub(super) fn is_summary(&self) -> bool {
        is_summary(&self.parts)
    }

    pub(super) fn uses(&self) -> impl Iterator<Item = &remuda_domain::tool::ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse { call } => Some(call),
            _ => None,
        })
    }

    /// Whether it holds the result of a call.
    pub(super) fn answers(&self, call: ToolCallId) -> bool {
        self.results().any(|outcome| outcome.id == call)
    }

    fn results(&self) -> impl Iterator<Item = &ToolOutcome> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        })
    }
}

/// Reads what models see of a session ([`context::view`](super::context::view)).
pub(super) async fn load(store: &dyn Store, tenant: TenantId, session: SessionId) -> Result<Vec<Said>> {
    let mut said: Vec<Said> = Vec::new();
    let mut bytes = 0;
    let mut page = PageRequest { size: PAGE, token: None };
    loop {
        let messages = store.list_messages(tenant, session, &page).await?;
        for message in messages.items {
            let Message { id, run, role, agent, parts, .. } = message;
            said.push(Said { id, run, role, agent, parts });
            bytes += said.last().map_or(0, size);
        }
        // A session may be longer than what is held of it.
        let count = said.len();
        said = context::view(said);
        if said.len() < count {
            bytes = said.iter().map(size).sum();
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

/// The ids of all messages of a session.
pub(super) async fn ids_of(
    store: &dyn Store,
    tenant: TenantId,
    session: SessionId,
) -> Result<HashSet<MessageId>> {
    let mut ids = HashSet::new();
    let mut page = PageRequest { size: PAGE, token: None };
    loop {
        let messages = store.list_messages(tenant, session, &page).await?;
        ids.extend(messages.items.iter().map(|message| message.id));
        match messages.next {
            Some(token) => page.token = Some(token),
            None => return Ok(ids),
        }
    }
}

fn size(message: &Said) -> usize {
    serde_json::to_string(&message.parts).map_or(0, |text| text.len())
}

/// A message as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outgoing {
    pub(super) form: Form,
    pub(super) role: Role,
    pub(super) parts: Vec<Part>,
}

/// How a message that is sent stands to the transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is there.
    Stored(MessageId),
    /// As it is there, with the results of tools left out ([`context::clear`](super::context::clear)).
    Cleared(MessageId),
    /// Made of one that is there.
    Changed(MessageId),
    /// Not there at all.
    Given,
}

impl Form {
    /// The message of the transcript behind it.
    pub(super) const fn id(self) -> Option<MessageId> {
        match self {
            Self::Stored(id) | Self::Cleared(id) | Self::Changed(id) => Some(id),
            Self::Given => None,
        }
    }

    /// The same after something was put into the message.
    const fn changed(self) -> Self {
        match self {
            Self::Stored(id) | Self::Cleared(id) | Self::Changed(id) => Self::Changed(id),
            Self::Given => Self::Given,
        }
    }
}

impl Outgoing {
    pub(super) fn given(role: Role, parts: Vec<Part>) -> Self {
        Self { form: Form::Given, role, parts }
    }

    fn stored(said: &Said) -> Self {
        Self { form: Form::Stored(said.id), role: said.role, parts: said.parts.clone() }
    }

    /// Whether it stands in place of what was said before.
    pub(super) fn is_summary(&self) -> bool {
        is_summary(&self.parts)
    }

    /// Whether the user said it, or what was added to that.
    pub(super) fn is_from_user(&self) -> bool {
        let is_notice = |part: &Part| matches!(part, Part::Text { text } if text.starts_with(NOTICE));
        self.role == Role::User && !self.is_summary() && !self.parts.first().is_some_and(is_notice)
    }
}

fn is_summary(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Summary { .. }))
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
        outgoing.push(Outgoing::stored(message));
        if message.role != Role::Assistant || message.uses().next().is_none() {
            continue;
        }
        // Calls that someone else made have their results with them.
        let next = messages.next_if(|next| next.role == Role::Tool && next.uses().next().is_none());
        let given: HashMap<ToolCallId, &ToolOutcome> =
            next.into_iter().flat_map(Said::results).map(|outcome| (outcome.id, outcome)).collect();
        if let Some(next) = next
            && message.uses().all(|call| given.contains_key(&call.id))
        {
            outgoing.push(Outgoing::stored(next));
            continue;
        }
        let results = message.uses().map(|call| {
            let outcome = given.get(&call.id).or_else(|| known.get(&call.id)).copied().cloned();
            // A call without a step had no effects: those that can have some are announced.
            let never_made = || ToolOutcome::unreached(call, RunState::Failed);
            Part::ToolResult { outcome: outcome.unwrap_or_else(never_made) }
        });
        let form = next.map_or(Form::Given, |next| Form::Changed(next.id));
        outgoing.push(Outgoing { form, role: Role::Tool, parts: results.collect() });
    }
    outgoing
}

/// What the record of a model call says of the messages that were sent. A summary is named by itself: it does not stand where it
/// is stored.
pub(super) fn record(outgoing: &[Outgoing]) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    let mut open = false;
    for message in outgoing {
        let alone = message.is_summary();
        match (message.form, sent.last_mut().filter(|_| open && !alone)) {
            (Form::Stored(id), Some(Sent::Stored { last, count, .. }))
            | (Form::Cleared(id), Some(Sent::Cleared { last, count, .. })) => {
                *last = id;
                *count += 1;
            }
            (Form::Stored(id), _) => sent.push(Sent::Stored { first: id, last: id, count: 1 }),
            (Form::Cleared(id), _) => sent.push(Sent::Cleared { first: id, last: id, count: 1 }),
            (Form::Changed(_) | Form::Given, _) => {
                sent.push(Sent::Given { role: message.role, parts: message.parts.clone() });
            }
        }
        open = !alone;
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
        newest.form = newest.form.changed();
        let text = format!("<system_reminder>\n{}\n</system_reminder>", reminder.trim());
        newest.parts.insert(0, Part::text(text));
    }
}

/// Tells the agent something after all that was said: with the newest results of its calls, or else by itself.
pub(super) fn add(outgoing: &mut Vec<Outgoing>, text: &str) {
    match outgoing.last_mut().filter(|message| message.role == Role::Tool) {
        Some(results) => {
            results.form = results.form.changed();
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
        assert_eq!(outgoing[2].form, Form::Changed(history[2].id));
        // Nothing at all was recorded after the calls.
        let outgoing = repair(&history[..2], &[]);
        assert_eq!((results(&outgoing[2]).len(), outgoing[2].form), (3, Form::Given));
    }

    #[test]
    fn records_name_ranges_of_one_form() {
        let ids: Vec<MessageId> = (0..6).map(|_| MessageId::new()).collect();
        let message = |form, parts| Outgoing { form, role: Role::User, parts };
        let summary = Part::Summary { text: "so far".into(), through: MessageId::new() };
        let changed = vec![Part::text("changed")];
        let outgoing = [
            message(Form::Stored(ids[0]), vec![summary]),
            message(Form::Stored(ids[1]), vec![]),
            message(Form::Cleared(ids[2]), vec![]),
            message(Form::Cleared(ids[3]), vec![]),
            message(Form::Changed(ids[4]), changed.clone()),
            message(Form::Stored(ids[5]), vec![]),
        ];
        let stored = |at: usize| Sent::Stored { first: ids[at], last: ids[at], count: 1 };
        let expected = [
            stored(0),
            stored(1),
            Sent::Cleared { first: ids[2], last: ids[3], count: 2 },
            Sent::Given { role: Role::User, parts: changed },
            stored(5),
        ];
        assert_eq!(record(&outgoing), expected);
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
        assert_eq!(outgoing[2].form, Form::Changed(history[2].id));
        assert_eq!(outgoing[0].form, Form::Stored(history[0].id));
        let later = [
            history.to_vec(),
            vec![said(Role::Assistant, "build", vec![Part::text("built")]), user("build", "thanks")],
        ]
        .concat();
        assert!(!agent_changed(&later, "build"));
    }
}
