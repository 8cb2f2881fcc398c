//! Conversations for tests, and what holds for all of them.

use std::collections::HashSet;

use proptest::prelude::*;
use remuda_domain::{
    MessageId, RunId, ToolCallId,
    message::{Part, Role},
    model::{ModelDefinition, ModelParameters, ModelRef, ProviderKind},
    tool::{CallStatus, ToolCall, ToolOutcome},
};
use remuda_models::Content;
use serde_json::{Value, json};

use super::{Cut, Gauge, fallback, fit, groups::groups, summary_message, summary_request, view};
use crate::agent::{
    request,
    settings::ContextSettings,
    transcript::{self, Outgoing, Said},
};

/// A conversation on its way.
#[derive(Debug)]
pub(super) struct Talk {
    /// As a run holds it.
    pub(super) said: Vec<Said>,
    /// As the store does.
    stored: Vec<Said>,
}

pub(super) fn talk() -> Talk {
    Talk { said: Vec::new(), stored: Vec::new() }
}

impl Talk {
    fn say(&mut self, role: Role, parts: Vec<Part>) -> &mut Self {
        let (run, agent) = (Some(RunId::new()), Some("build".to_owned()));
        let said = Said { id: MessageId::new(), run, role, agent, parts };
        self.said.push(said.clone());
        self.stored.push(said);
        self
    }

    pub(super) fn user(&mut self, text: &str) -> &mut Self {
        self.say(Role::User, vec![Part::text(text)])
    }

    pub(super) fn assistant(&mut self, parts: Vec<Part>) -> &mut Self {
        self.say(Role::Assistant, parts)
    }

    /// An answer with one call, and its result.
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
        self.say(Role::Tool, vec![Part::ToolResult { outcome }])
    }

    pub(super) fn summary(&mut self, text: &str, through: MessageId) -> &mut Self {
        self.say(Role::System, vec![Part::Summary { text: text.into(), through }])
    }

    pub(super) fn apply(&mut self, cut: &Cut, text: &str) -> &mut Self {
        self.say(Role::System, summary_message(text, cut));
        self.said = view(std::mem::take(&mut self.said));
        self
    }

    pub(super) fn outgoing(&self) -> Vec<Outgoing> {
        transcript::repair(&view(self.said.clone()), &[])
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

/// Of a model with so much room for messages.
pub(super) fn gauge(usable: u64) -> Gauge {
    let parameters = ModelParameters { max_tokens: Some(1024), ..ModelParameters::default() };
    let model = model(Some(usable + 1024));
    let gauge = Gauge::new(&model, &parameters, &ContextSettings::default(), 0, None);
    assert_eq!(gauge.room.usable(), usable);
    gauge
}

/// What happens in a conversation. Numbers are lengths of texts.
#[derive(Clone, Debug)]
enum Event {
    User(usize),
    Answer(usize),
    /// Calls, by tool and length of their results.
    Calls(Vec<(u8, usize)>),
    /// The same, but so many of the results were lost with their worker.
    Lost(Vec<(u8, usize)>, usize),
    /// Calls that someone else made.
    Told(usize),
    /// What is there is summed up, though it would fit.
    Summary,
}

fn event() -> impl Strategy<Value = Event> {
    let length = || prop_oneof![3 => 0..300_usize, 3 => 300..4000_usize, 1 => 4000..40_000_usize];
    let calls = || prop::collection::vec((0..3_u8, length()), 1..5);
    prop_oneof![
        3 => length().prop_map(Event::User),
        2 => length().prop_map(Event::Answer),
        8 => calls().prop_map(Event::Calls),
        1 => (calls(), 1..4_usize).prop_map(|(calls, lost)| Event::Lost(calls, lost)),
        1 => length().prop_map(Event::Told),
        1 => Just(Event::Summary),
    ]
}

/// Returns how the newest message of the user begins.
fn hold(events: &[Event], gauge: &Gauge) -> (Talk, Option<String>) {
    let mut talk = talk();
    let mut newest = None;
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::User(length) => {
                let begin = format!("message {index} of the user");
                talk.user(&format!("{begin} {}", "u".repeat(*length)));
                newest = Some(begin);
            }
            Event::Answer(length) => {
                talk.assistant(vec![Part::text("a".repeat(length + 1))]);
            }
            Event::Calls(calls) => make(&mut talk, calls, 0),
            Event::Lost(calls, lost) => make(&mut talk, calls, *lost),
            Event::Told(length) => {
                let call = new_call("Bash", json!({ "command": "ls" }));
                let outcome = done(&call, *length);
                talk.say(Role::Tool, vec![Part::ToolUse { call }, Part::ToolResult { outcome }]);
            }
            Event::Summary => {
                let fitted = fit(talk.outgoing(), None, gauge, true);
                if let Some(cut) = &fitted.cut {
                    talk.apply(cut, &fallback(cut));
                }
            }
        }
    }
    (talk, newest)
}

fn done(call: &ToolCall, length: usize) -> ToolOutcome {
    ToolOutcome {
        output: json!("r".repeat(length)),
        ..ToolOutcome::without_result(call, CallStatus::Completed, None)
    }
}

fn make(talk: &mut Talk, calls: &[(u8, usize)], lost: usize) {
    let tools = ["Read", "Bash", "Skill"];
    let made: Vec<(ToolCall, usize)> = calls
        .iter()
        .map(|(tool, length)| (new_call(tools[usize::from(*tool)], json!({ "n": length })), *length))
        .collect();
    talk.assistant(made.iter().map(|(call, _)| Part::ToolUse { call: call.clone() }).collect());
    let kept = made.len().saturating_sub(lost);
    if kept > 0 {
        let outcomes = made[..kept].iter().map(|(call, length)| done(call, *length));
        talk.say(Role::Tool, outcomes.map(|outcome| Part::ToolResult { outcome }).collect());
    }
}

/// Providers want the results of an answer's calls in the next message, all of them, and no others.
fn assert_paired(outgoing: &[Outgoing]) {
    let chat = request::chat(outgoing, &model(None).reference);
    let mut wanted: HashSet<String> = HashSet::new();
    for message in &chat {
        let ids = |is_use: bool| {
            let ids = message.content.iter().filter_map(move |content| match content {
                Content::ToolUse { id, .. } if is_use => Some(id.clone()),
                Content::ToolResult { id, .. } if !is_use => Some(id.clone()),
                _ => None,
            });
            ids.collect::<HashSet<String>>()
        };
        assert_eq!(ids(false), wanted);
        wanted = ids(true);
    }
    assert!(wanted.is_empty());
}

fn shows(outgoing: &[Outgoing], begin: &str) -> bool {
    let chat = request::chat(outgoing, &model(None).reference);
    let mut contents = chat.iter().flat_map(|message| &message.content);
    contents.any(|content| matches!(content, Content::Text(text) if text.contains(begin)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_said_it_fits_and_nothing_is_torn(
        events in prop::collection::vec(event(), 1..40),
        usable in prop_oneof![1100..4000_u64, 4000..40_000_u64],
        keep_results in 0..6_usize,
        forced: bool,
    ) {
        let mut gauge = gauge(usable);
        gauge.settings.keep_results = keep_results;
        let (mut talk, newest) = hold(&events, &gauge);
        prop_assert_eq!(&view(talk.stored.clone()), &talk.said, "a run that resumes sees the same");
        prop_assert_eq!(&view(talk.said.clone()), &talk.said);
        assert_paired(&talk.outgoing());

        let before = talk.outgoing();
        let mut fitted = fit(before.clone(), None, &gauge, forced);
        if let Some(cut) = &fitted.cut {
            let asked = super::tokens::message(&summary_request(cut, &gauge).messages[0]);
            prop_assert!(asked <= gauge.room.window, "the question for a summary fits");
            talk.apply(cut, &fallback(cut));
            prop_assert!(talk.outgoing().len() <= before.len(), "something is gone");
            prop_assert_eq!(&view(talk.stored.clone()), &talk.said);
            fitted = fit(talk.outgoing(), fitted.cleared, &gauge, false);
            prop_assert!(fitted.cut.is_none(), "once is enough");
        }
        assert_paired(&fitted.outgoing);
        if let Some(begin) = newest {
            prop_assert!(shows(&fitted.outgoing, &begin), "{begin} is lost");
        }
        let left = groups(&fitted.outgoing).into_iter();
        let left = left.filter(|group| !fitted.outgoing[group.start].is_summary()).count();
        let tokens = gauge.messages(&fitted.outgoing);
        prop_assert!(tokens <= gauge.share(gauge.settings.summarize_at) || left <= 1, "{tokens} in {left} groups");

        let again = fit(fitted.outgoing.clone(), fitted.cleared, &gauge, false);
        prop_assert_eq!(again, fitted, "what fits stays as it is");
    }
}
