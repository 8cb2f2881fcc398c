//! Test conversations, and properties that hold for all of them.

use std::collections::HashSet;

use proptest::prelude::*;
use remuda_domain::{
    MessageId, RunId, ToolCallId,
    message::{Part, Role},
    model::{ModelDefinition, ModelParameters, ModelRef, ProviderKind},
    tool::{CallStatus, ToolCall, ToolCatalog, ToolOutcome},
};
use remuda_models::Content;
use remuda_tools::{Registry, ToolOptions};
use serde_json::{Value, json};

use super::{Cut, TokenEstimator, fallback, fit, groups::groups, summary_message, summary_request, view};
use crate::agent::{
    model_request,
    settings::ContextSettings,
    transcript::{self, Outgoing, TranscriptMessage},
};

/// A conversation under construction.
#[derive(Debug)]
pub(super) struct Conversation {
    /// As a run holds it.
    pub(super) transcript: Vec<TranscriptMessage>,
    /// As the store holds it.
    stored: Vec<TranscriptMessage>,
}

pub(super) fn conversation() -> Conversation {
    Conversation { transcript: Vec::new(), stored: Vec::new() }
}

impl Conversation {
    fn append_message(&mut self, role: Role, parts: Vec<Part>) -> &mut Self {
        let (run, agent) = (Some(RunId::new()), Some("build".to_owned()));
        let transcript = TranscriptMessage { id: MessageId::new(), run, role, agent, parts };
        self.transcript.push(transcript.clone());
        self.stored.push(transcript);
        self
    }

    pub(super) fn user(&mut self, text: &str) -> &mut Self {
        self.append_message(Role::User, vec![Part::text(text)])
    }

    pub(super) fn assistant(&mut self, parts: Vec<Part>) -> &mut Self {
        self.append_message(Role::Assistant, parts)
    }

    /// A response with one call, and its result.
    pub(super) fn call(
        &mut self,
        tool: &str,
        arguments: Value,
        status: CallStatus,
        output: Value,
    ) -> &mut Self {
        let call = new_call(tool, arguments);
        let outcome = ToolOutcome { output, ..ToolOutcome::without_result(&call, status, None) };
        self.assistant(vec![Part::ToolUse { call }]);
        self.append_message(Role::Tool, vec![Part::ToolResult { outcome }])
    }

    pub(super) fn summary(&mut self, text: &str, through: MessageId) -> &mut Self {
        self.append_message(Role::System, vec![Part::Summary { text: text.into(), through }])
    }

    pub(super) fn apply(&mut self, cut: &Cut, text: &str) -> &mut Self {
        self.append_message(Role::System, summary_message(text, cut));
        self.transcript = view(std::mem::take(&mut self.transcript));
        self
    }

    pub(super) fn outgoing(&self) -> Vec<Outgoing> {
        transcript::repair(&view(self.transcript.clone()), &[])
    }

    pub(super) fn model(&self) -> ModelRef {
        model(None).reference
    }
}

fn new_call(tool: &str, arguments: Value) -> ToolCall {
    ToolCall { id: ToolCallId::new(), tool: tool.into(), arguments, parallel: true, timeout: None }
}

pub(super) fn model(context_window: Option<u64>) -> ModelDefinition {
    ModelDefinition {
        reference: "platform/m".parse().unwrap(),
        provider: ProviderKind::Scripted,
        name: "m".into(),
        url: None,
        key: None,
        headers: Default::default(),
        parameters: ModelParameters::default(),
        context_window,
        max_output_tokens: None,
        price: None,
        metadata: Default::default(),
    }
}

pub(super) fn tools() -> ToolCatalog {
    crate::tool_catalog(&Registry::native(&ToolOptions::default()))
}

/// The estimator of a model with so many tokens for messages.
pub(super) fn estimator(usable: u64) -> TokenEstimator {
    let parameters = ModelParameters { max_tokens: Some(1024), ..ModelParameters::default() };
    let model = model(Some(usable + 1024));
    let estimator =
        TokenEstimator::new(&model, &parameters, &ContextSettings::default(), 0, None).with_tools(&tools());
    assert_eq!(estimator.window.usable(), usable);
    estimator
}

/// An event in a conversation. Numbers are lengths of texts.
#[derive(Clone, Debug)]
enum Event {
    User(usize),
    Response(usize),
    /// Calls, by tool and length of their results.
    Calls(Vec<(u8, usize)>),
    /// Calls, of which so many results were lost with their worker.
    LostResults(Vec<(u8, usize)>, usize),
    /// Calls made outside of the conversation.
    ExternalCalls(usize),
    /// A forced summary.
    Summary,
}

fn event() -> impl Strategy<Value = Event> {
    let length = || prop_oneof![3 => 0..300_usize, 3 => 300..4000_usize, 1 => 4000..40_000_usize];
    let calls = || prop::collection::vec((0..3_u8, length()), 1..5);
    prop_oneof![
        3 => length().prop_map(Event::User),
        2 => length().prop_map(Event::Response),
        8 => calls().prop_map(Event::Calls),
        1 => (calls(), 1..4_usize).prop_map(|(calls, lost)| Event::LostResults(calls, lost)),
        1 => length().prop_map(Event::ExternalCalls),
        1 => Just(Event::Summary),
    ]
}

/// Returns the conversation and the beginning of its newest user message.
fn converse(events: &[Event], estimator: &TokenEstimator) -> (Conversation, Option<String>) {
    let mut conversation = conversation();
    let mut newest = None;
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::User(length) => {
                let begin = format!("message {index} of the user");
                conversation.user(&format!("{begin} {}", "u".repeat(*length)));
                newest = Some(begin);
            }
            Event::Response(length) => {
                conversation.assistant(vec![Part::text("a".repeat(length + 1))]);
            }
            Event::Calls(calls) => add_calls(&mut conversation, calls, 0),
            Event::LostResults(calls, lost) => add_calls(&mut conversation, calls, *lost),
            Event::ExternalCalls(length) => {
                let call = new_call("Bash", json!({ "command": "ls" }));
                let outcome = done(&call, *length);
                conversation
                    .append_message(Role::Tool, vec![Part::ToolUse { call }, Part::ToolResult { outcome }]);
            }
            Event::Summary => {
                let fitted = fit(conversation.outgoing(), None, estimator, true);
                if let Some(cut) = &fitted.cut {
                    conversation.apply(cut, &fallback(cut));
                }
            }
        }
    }
    (conversation, newest)
}

fn done(call: &ToolCall, length: usize) -> ToolOutcome {
    ToolOutcome {
        output: json!("r".repeat(length)),
        ..ToolOutcome::without_result(call, CallStatus::Completed, None)
    }
}

fn add_calls(conversation: &mut Conversation, calls: &[(u8, usize)], lost: usize) {
    let tools = ["Read", "Bash", "Skill"];
    let made: Vec<(ToolCall, usize)> = calls
        .iter()
        .map(|(tool, length)| (new_call(tools[usize::from(*tool)], json!({ "n": length })), *length))
        .collect();
    conversation.assistant(made.iter().map(|(call, _)| Part::ToolUse { call: call.clone() }).collect());
    let kept = made.len().saturating_sub(lost);
    if kept > 0 {
        let outcomes = made[..kept].iter().map(|(call, length)| done(call, *length));
        conversation
            .append_message(Role::Tool, outcomes.map(|outcome| Part::ToolResult { outcome }).collect());
    }
}

/// Providers require the results of all calls of a response, and no others, in the next message.
fn assert_paired(outgoing: &[Outgoing]) {
    let chat = model_request::chat_messages(outgoing, &model(None).reference);
    let mut expected: HashSet<String> = HashSet::new();
    for message in &chat {
        let ids = |is_use: bool| {
            let ids = message.content.iter().filter_map(move |content| match content {
                Content::ToolUse { id, .. } if is_use => Some(id.clone()),
                Content::ToolResult { id, .. } if !is_use => Some(id.clone()),
                _ => None,
            });
            ids.collect::<HashSet<String>>()
        };
        assert_eq!(ids(false), expected);
        expected = ids(true);
    }
    assert!(expected.is_empty());
}

fn contains_text(outgoing: &[Outgoing], begin: &str) -> bool {
    let chat = model_request::chat_messages(outgoing, &model(None).reference);
    let mut contents = chat.iter().flat_map(|message| &message.content);
    contents.any(|content| matches!(content, Content::Text(text) if text.contains(begin)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_fits_and_keeps_calls_with_their_results(
        events in prop::collection::vec(event(), 1..40),
        usable in prop_oneof![1100..4000_u64, 4000..40_000_u64],
        keep_results in 0..6_usize,
        forced: bool,
    ) {
        let mut estimator = estimator(usable);
        estimator.settings.keep_results = keep_results;
        let (mut conversation, newest) = converse(&events, &estimator);
        prop_assert_eq!(&view(conversation.stored.clone()), &conversation.transcript, "a resumed run has the same view");
        prop_assert_eq!(&view(conversation.transcript.clone()), &conversation.transcript);
        assert_paired(&conversation.outgoing());

        let before = conversation.outgoing();
        let mut fitted = fit(before.clone(), None, &estimator, forced);
        if let Some(cut) = &fitted.cut {
            let request_tokens = super::tokens::message(&summary_request(cut, &estimator).messages[0]);
            prop_assert!(request_tokens <= estimator.window.capacity, "the summary request fits");
            conversation.apply(cut, &fallback(cut));
            prop_assert!(conversation.outgoing().len() <= before.len(), "messages were removed");
            prop_assert_eq!(&view(conversation.stored.clone()), &conversation.transcript);
            fitted = fit(conversation.outgoing(), fitted.cleared, &estimator, false);
            prop_assert!(fitted.cut.is_none(), "one summary suffices");
        }
        assert_paired(&fitted.outgoing);
        if let Some(begin) = newest {
            prop_assert!(contains_text(&fitted.outgoing, &begin), "{begin} is lost");
        }
        let kept = groups(&fitted.outgoing).into_iter();
        let kept = kept.filter(|group| !fitted.outgoing[group.start].is_summary()).count();
        let tokens = estimator.total(&fitted.outgoing);
        prop_assert!(tokens <= estimator.share_of_window(estimator.settings.summarize_at) || kept <= 1, "{tokens} in {kept} groups");

        let again = fit(fitted.outgoing.clone(), fitted.cleared, &estimator, false);
        prop_assert_eq!(again, fitted, "fitting is idempotent");
    }
}
