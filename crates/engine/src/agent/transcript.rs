//! The transcript of a session, and its conversion into the messages that are sent to a model.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Error, MessageId, RunId, RunState, SessionId, TenantId, ToolCallId,
    error::Result,
    message::{Message, Part, Role},
    page::PageRequest,
    step::{SentMessages, Step},
    tool::ToolOutcome,
};
use remuda_store::{NewMessage, Store};

use super::context;

/// Page size, and the maximum size of a transcript: more would fit into no model.
const PAGE: u32 = 500;
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The first line of a notice about a background child. Notices have the role of the user, who did not write them.
pub(super) const NOTICE: &str = "<task_notification>";

/// A message of the transcript.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TranscriptMessage {
    pub(super) id: MessageId,
    pub(super) run: Option<RunId>,
    pub(super) role: Role,
    pub(super) agent: Option<String>,
    pub(super) parts: Vec<Part>,
}

impl TranscriptMessage {
    pub(super) fn new(message: &NewMessage, run: RunId) -> Self {
        let NewMessage { id, role, agent, parts } = message.clone();
        Self { id, run: Some(run), role, agent, parts }
    }

    pub(super) fn is_summary(&self) -> bool {
        is_summary(&self.parts)
    }

    pub(super) fn tool_calls(&self) -> impl Iterator<Item = &remuda_domain::tool::ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse { call } => Some(call),
            _ => None,
        })
    }

    /// Whether the message holds the result of a call.
    pub(super) fn has_result_for(&self, call: ToolCallId) -> bool {
        self.results().any(|outcome| outcome.id == call)
    }

    fn results(&self) -> impl Iterator<Item = &ToolOutcome> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        })
    }
}

/// Reads the part of a session's transcript that models see ([`context::view`](super::context::view)).
pub(super) async fn load(
    store: &dyn Store,
    tenant: TenantId,
    session: SessionId,
) -> Result<Vec<TranscriptMessage>> {
    let mut transcript: Vec<TranscriptMessage> = Vec::new();
    let mut bytes = 0;
    let mut page = PageRequest { size: PAGE, token: None };
    loop {
        let messages = store.list_messages(tenant, session, &page).await?;
        for message in messages.items {
            let Message { id, run, role, agent, parts, .. } = message;
            transcript.push(TranscriptMessage { id, run, role, agent, parts });
            bytes += transcript.last().map_or(0, size);
        }
        // Summaries shorten the transcript page by page, so a session may be longer than the limit.
        let count = transcript.len();
        transcript = context::view(transcript);
        if transcript.len() < count {
            bytes = transcript.iter().map(size).sum();
        }
        if bytes > MAX_BYTES {
            return Err(Error::new(
                remuda_domain::Code::ContextTooLong,
                format!("the session's messages are longer than {MAX_BYTES} bytes: go on in a new session"),
            ));
        }
        match messages.next {
            Some(token) => page.token = Some(token),
            None => return Ok(transcript),
        }
    }
}

/// The ids of all messages of a session.
pub(super) async fn message_ids(
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

fn size(message: &TranscriptMessage) -> usize {
    serde_json::to_string(&message.parts).map_or(0, |text| text.len())
}

/// A message as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outgoing {
    pub(super) origin: Origin,
    pub(super) role: Role,
    pub(super) parts: Vec<Part>,
}

/// How a sent message relates to the stored transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Unchanged.
    Stored(MessageId),
    /// With its tool results cleared ([`context::clear`](super::context::clear)).
    Cleared(MessageId),
    /// Derived from a stored message.
    Changed(MessageId),
    /// Not in the transcript.
    Inserted,
}

impl Origin {
    /// The stored message behind it.
    pub(super) const fn id(self) -> Option<MessageId> {
        match self {
            Self::Stored(id) | Self::Cleared(id) | Self::Changed(id) => Some(id),
            Self::Inserted => None,
        }
    }

    /// The origin after the message was edited.
    const fn changed(self) -> Self {
        match self {
            Self::Stored(id) | Self::Cleared(id) | Self::Changed(id) => Self::Changed(id),
            Self::Inserted => Self::Inserted,
        }
    }
}

impl Outgoing {
    pub(super) fn inserted(role: Role, parts: Vec<Part>) -> Self {
        Self { origin: Origin::Inserted, role, parts }
    }

    fn stored(transcript: &TranscriptMessage) -> Self {
        Self { origin: Origin::Stored(transcript.id), role: transcript.role, parts: transcript.parts.clone() }
    }

    /// Whether the message replaces what came before it.
    pub(super) fn is_summary(&self) -> bool {
        is_summary(&self.parts)
    }

    /// Whether the message is the user's, possibly with additions.
    pub(super) fn is_from_user(&self) -> bool {
        let is_notice = |part: &Part| matches!(part, Part::Text { text } if text.starts_with(NOTICE));
        self.role == Role::User && !self.is_summary() && !self.parts.first().is_some_and(is_notice)
    }
}

fn is_summary(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Summary { .. }))
}

/// Runs that have calls without results in the transcript, because their workers were lost.
pub(super) fn runs_to_repair(transcript: &[TranscriptMessage]) -> HashSet<RunId> {
    dangling(transcript).filter_map(|message| message.run).collect()
}

fn dangling(transcript: &[TranscriptMessage]) -> impl Iterator<Item = &TranscriptMessage> {
    transcript.iter().enumerate().filter_map(|(index, message)| {
        let with_results: HashSet<ToolCallId> = transcript
            .get(index + 1)
            .into_iter()
            .flat_map(TranscriptMessage::results)
            .map(|outcome| outcome.id)
            .collect();
        let is_open = message.role == Role::Assistant
            && message.tool_calls().any(|call| !with_results.contains(&call.id));
        is_open.then_some(message)
    })
}

/// Gives every call exactly one result: the one in its run's steps, or that it was never made. Providers reject a
/// history with missing results.
pub(super) fn repair(transcript: &[TranscriptMessage], steps: &[Step]) -> Vec<Outgoing> {
    let known: HashMap<ToolCallId, &ToolOutcome> =
        steps.iter().filter_map(Step::call_outcome).map(|outcome| (outcome.id, outcome)).collect();
    let mut outgoing = Vec::with_capacity(transcript.len());
    let mut messages = transcript.iter().peekable();
    while let Some(message) = messages.next() {
        outgoing.push(Outgoing::stored(message));
        if message.role != Role::Assistant || message.tool_calls().next().is_none() {
            continue;
        }
        // Calls that were made outside of the conversation carry their results in the same message.
        let next = messages.next_if(|next| next.role == Role::Tool && next.tool_calls().next().is_none());
        let inserted: HashMap<ToolCallId, &ToolOutcome> = next
            .into_iter()
            .flat_map(TranscriptMessage::results)
            .map(|outcome| (outcome.id, outcome))
            .collect();
        if let Some(next) = next
            && message.tool_calls().all(|call| inserted.contains_key(&call.id))
        {
            outgoing.push(Outgoing::stored(next));
            continue;
        }
        let results = message.tool_calls().map(|call| {
            let outcome = inserted.get(&call.id).or_else(|| known.get(&call.id)).copied().cloned();
            // A call without a step had no effects: calls with effects are committed before they start.
            let never_made = || ToolOutcome::unreached(call, RunState::Failed);
            Part::ToolResult { outcome: outcome.unwrap_or_else(never_made) }
        });
        let origin = next.map_or(Origin::Inserted, |next| Origin::Changed(next.id));
        outgoing.push(Outgoing { origin, role: Role::Tool, parts: results.collect() });
    }
    outgoing
}

/// The record of the sent messages in the step of a model call. A summary gets its own entry, because it is not sent
/// in the position where it is stored.
pub(super) fn sent_messages(outgoing: &[Outgoing]) -> Vec<SentMessages> {
    let mut sent: Vec<SentMessages> = Vec::new();
    let mut open = false;
    for message in outgoing {
        let alone = message.is_summary();
        match (message.origin, sent.last_mut().filter(|_| open && !alone)) {
            (Origin::Stored(id), Some(SentMessages::Stored { last, count, .. }))
            | (Origin::Cleared(id), Some(SentMessages::Cleared { last, count, .. })) => {
                *last = id;
                *count += 1;
            }
            (Origin::Stored(id), _) => sent.push(SentMessages::Stored { first: id, last: id, count: 1 }),
            (Origin::Cleared(id), _) => sent.push(SentMessages::Cleared { first: id, last: id, count: 1 }),
            (Origin::Changed(_) | Origin::Inserted, _) => {
                sent.push(SentMessages::Given { role: message.role, parts: message.parts.clone() });
            }
        }
        open = !alone;
    }
    sent
}

/// Whether the session's agent changed between the newest user message and the message before it.
pub(super) fn agent_changed(transcript: &[TranscriptMessage], agent: &str) -> bool {
    let Some(newest) = transcript.iter().rposition(|message| message.role == Role::User) else {
        return false;
    };
    let before = transcript[..newest].iter().rev().find_map(|message| message.agent.as_deref());
    before.is_some_and(|before| before != agent)
}

/// Puts a reminder before the text of the newest user message.
pub(super) fn insert_reminder(outgoing: &mut [Outgoing], reminder: &str) {
    if let Some(newest) = outgoing.iter_mut().rev().find(|message| message.role == Role::User) {
        newest.origin = newest.origin.changed();
        let text = format!("<system_reminder>\n{}\n</system_reminder>", reminder.trim());
        newest.parts.insert(0, Part::text(text));
    }
}

/// Appends a note for the agent: to the newest tool results, or else as a separate message.
pub(super) fn append_note(outgoing: &mut Vec<Outgoing>, text: &str) {
    match outgoing.last_mut().filter(|message| message.role == Role::Tool) {
        Some(results) => {
            results.origin = results.origin.changed();
            results.parts.push(Part::text(text));
        }
        None => outgoing.push(Outgoing::inserted(Role::User, vec![Part::text(text)])),
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

    fn transcript(role: Role, agent: &str, parts: Vec<Part>) -> TranscriptMessage {
        TranscriptMessage {
            id: MessageId::new(),
            run: Some(RunId::new()),
            role,
            agent: Some(agent.into()),
            parts,
        }
    }

    fn user(agent: &str, text: &str) -> TranscriptMessage {
        transcript(Role::User, agent, vec![Part::text(text)])
    }

    fn results(message: &Outgoing) -> Vec<(ToolCallId, CallStatus)> {
        let outcomes = message.parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some((outcome.id, outcome.status)),
            _ => None,
        });
        outcomes.collect()
    }

    #[test]
    fn complete_history_is_sent_unchanged() {
        let one = call("Read");
        let history = [
            user("build", "hello"),
            transcript(Role::Assistant, "build", vec![Part::ToolUse { call: one.clone() }]),
            transcript(Role::Tool, "build", vec![Part::ToolResult { outcome: done(&one) }]),
            transcript(Role::Assistant, "build", vec![Part::text("done")]),
        ];
        assert!(runs_to_repair(&history).is_empty());
        let outgoing = repair(&history, &[]);
        let sent = sent_messages(&outgoing);
        assert_eq!(sent, [SentMessages::Stored { first: history[0].id, last: history[3].id, count: 4 }]);
    }

    #[test]
    fn every_call_gets_exactly_one_result() {
        let (kept, known, lost) = (call("Read"), call("Bash"), call("Edit"));
        let tool_calls = [&kept, &known, &lost].map(|call| Part::ToolUse { call: call.clone() });
        let partial = transcript(Role::Tool, "build", vec![Part::ToolResult { outcome: done(&kept) }]);
        let history = [
            user("build", "hello"),
            transcript(Role::Assistant, "build", tool_calls.to_vec()),
            partial,
            user("build", "are you there?"),
        ];
        assert_eq!(runs_to_repair(&history), HashSet::from([history[1].run.unwrap()]));
        let planned = {
            let mut planned = crate::call_plan::PlannedCall::new(known.clone(), 1, 1);
            planned.finish(done(&known));
            planned.to_step()
        };
        let outgoing = repair(&history, &[planned]);
        let expected = [
            (kept.id, CallStatus::Completed),
            (known.id, CallStatus::Completed),
            (lost.id, CallStatus::Skipped),
        ];
        assert_eq!(results(&outgoing[2]), expected);
        assert_eq!(outgoing.len(), 4);
        assert_eq!(outgoing[2].origin, Origin::Changed(history[2].id));
        // Nothing was recorded after the calls.
        let outgoing = repair(&history[..2], &[]);
        assert_eq!((results(&outgoing[2]).len(), outgoing[2].origin), (3, Origin::Inserted));
    }

    #[test]
    fn record_stores_ranges_of_one_origin() {
        let ids: Vec<MessageId> = (0..6).map(|_| MessageId::new()).collect();
        let message = |origin, parts| Outgoing { origin, role: Role::User, parts };
        let summary = Part::Summary { text: "so far".into(), through: MessageId::new() };
        let changed = vec![Part::text("changed")];
        let outgoing = [
            message(Origin::Stored(ids[0]), vec![summary]),
            message(Origin::Stored(ids[1]), vec![]),
            message(Origin::Cleared(ids[2]), vec![]),
            message(Origin::Cleared(ids[3]), vec![]),
            message(Origin::Changed(ids[4]), changed.clone()),
            message(Origin::Stored(ids[5]), vec![]),
        ];
        let stored = |at: usize| SentMessages::Stored { first: ids[at], last: ids[at], count: 1 };
        let expected = [
            stored(0),
            stored(1),
            SentMessages::Cleared { first: ids[2], last: ids[3], count: 2 },
            SentMessages::Given { role: Role::User, parts: changed },
            stored(5),
        ];
        assert_eq!(sent_messages(&outgoing), expected);
    }

    #[test]
    fn agent_is_reminded_once_after_a_switch() {
        let history = [
            user("plan", "make a plan"),
            transcript(Role::Assistant, "plan", vec![Part::text("here")]),
            user("build", "build it"),
        ];
        assert!(agent_changed(&history, "build"));
        assert!(!agent_changed(&history[..1], "plan"), "not at the beginning of a session");
        let mut outgoing = repair(&history, &[]);
        insert_reminder(&mut outgoing, "You build now.");
        assert_eq!(outgoing[2].parts.len(), 2);
        assert_eq!(outgoing[2].origin, Origin::Changed(history[2].id));
        assert_eq!(outgoing[0].origin, Origin::Stored(history[0].id));
        let later = [
            history.to_vec(),
            vec![transcript(Role::Assistant, "build", vec![Part::text("built")]), user("build", "thanks")],
        ]
        .concat();
        assert!(!agent_changed(&later, "build"));
    }
}
