//! Helpers that inspect what a run left in the store.

use remuda_domain::{
    Event, EventBody, Run, RunId, ToolCallId,
    content::ContentHash,
    message::{Message, Part, Role},
    session::{Session, SessionRef},
    step::{ModelOutcome, ModelRequest, SentMessages, StepWork},
    tool::{ToolCall, ToolOutcome},
};
use remuda_transport::{DeltaSource, Transport as _};

use crate::harness::Harness;

/// A message as it was sent. `inserted` if it is not in the transcript.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentMessage {
    pub(crate) role: Role,
    pub(crate) parts: Vec<Part>,
    pub(crate) inserted: bool,
}

pub(crate) fn tool_calls(parts: &[Part]) -> Vec<&ToolCall> {
    let tool_calls = parts.iter().filter_map(|part| match part {
        Part::ToolUse { call } => Some(call),
        _ => None,
    });
    tool_calls.collect()
}

pub(crate) fn results(parts: &[Part]) -> Vec<&ToolOutcome> {
    let results = parts.iter().filter_map(|part| match part {
        Part::ToolResult { outcome } => Some(outcome),
        _ => None,
    });
    results.collect()
}

/// `completed`, or another status with the failure's code.
pub(crate) fn status_and_code(outcome: &ToolOutcome) -> String {
    let code = outcome.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default();
    format!("{} {code}", outcome.status.as_str()).trim().to_owned()
}

pub(crate) fn statuses_and_codes(run: &Run) -> Vec<String> {
    run.outcomes.iter().map(status_and_code).collect()
}

/// The code of a run's failure.
pub(crate) fn code(run: &Run) -> &str {
    run.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default()
}

pub(crate) fn text(message: &SentMessage) -> String {
    remuda_domain::message::text_of(&message.parts)
}

/// Checks that every call has exactly one result, in the next message and in the order of the calls.
pub(crate) fn assert_results_complete<'a>(messages: impl IntoIterator<Item = (Role, &'a [Part])>) {
    let mut open: Vec<ToolCallId> = Vec::new();
    for (role, parts) in messages {
        let inserted: Vec<ToolCallId> = results(parts).iter().map(|outcome| outcome.id).collect();
        // Calls made outside of the conversation are in one message with their results.
        let called: Vec<ToolCallId> = tool_calls(parts).iter().map(|call| call.id).collect();
        match role {
            Role::Tool if called.is_empty() => assert_eq!(std::mem::take(&mut open), inserted),
            Role::Tool => assert_eq!(called, inserted),
            _ => {
                assert_eq!(open, [], "calls without results before {parts:?}");
                assert_eq!(inserted, []);
                open = called;
            }
        }
    }
    assert_eq!(open, [], "calls without results at the end");
}

impl Harness {
    pub(crate) async fn assert_results_complete(&self) {
        let messages = self.messages().await;
        assert_results_complete(messages.iter().map(|message| (message.role, message.parts.as_slice())));
    }

    /// The model calls of a run with their outcomes.
    pub(crate) async fn model_steps(&self, run: RunId) -> Vec<(ModelRequest, Option<ModelOutcome>)> {
        let steps = self.steps(run).await.into_iter().filter_map(|step| match step.work {
            StepWork::ModelCall { request, outcome } => Some((*request, outcome.map(|outcome| *outcome))),
            StepWork::ToolCall { .. } => None,
        });
        steps.collect()
    }

    pub(crate) async fn requests(&self, run: RunId) -> Vec<ModelRequest> {
        self.model_steps(run).await.into_iter().map(|(request, _)| request).collect()
    }

    /// The sent messages, rebuilt from the record of a model call.
    pub(crate) async fn sent_messages(&self, request: &ModelRequest) -> Vec<SentMessage> {
        let transcript = self.messages().await;
        let at = |id| transcript.iter().position(|message: &Message| message.id == id).unwrap();
        let mut rebuilt = Vec::new();
        for sent in &request.messages {
            match sent {
                SentMessages::Stored { first, last, count }
                | SentMessages::Cleared { first, last, count } => {
                    let stretch = transcript[at(*first)..=at(*last)].iter();
                    // A summary is sent before the messages that it does not cover.
                    let is_summary =
                        |it: &&Message| it.parts.iter().any(|part| matches!(part, Part::Summary { .. }));
                    let stored: Vec<&Message> =
                        stretch.filter(|it| it.id == *first || !is_summary(it)).collect();
                    assert_eq!(stored.len(), usize::try_from(*count).unwrap());
                    let stored = stored.into_iter().cloned();
                    rebuilt.extend(stored.map(|it| SentMessage {
                        role: it.role,
                        parts: it.parts,
                        inserted: false,
                    }));
                }
                SentMessages::Given { role, parts } => {
                    rebuilt.push(SentMessage { role: *role, parts: parts.clone(), inserted: true });
                }
            }
        }
        rebuilt
    }

    pub(crate) async fn content(&self, hash: ContentHash) -> String {
        let text = self.store.get_content(self.tenant, hash).await.unwrap();
        let text = text.unwrap_or_else(|| panic!("nothing is stored under {hash}"));
        assert_eq!(ContentHash::of(&text), hash);
        text
    }

    /// The names of the tools that a model call offered.
    pub(crate) async fn offered(&self, request: &ModelRequest) -> Vec<String> {
        let tools: serde_json::Value = serde_json::from_str(&self.content(request.tools).await).unwrap();
        let names = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// Subscribes to the session's deltas.
    pub(crate) async fn deltas(&self) -> Box<dyn DeltaSource> {
        self.transport.subscribe_deltas(self.tenant, self.session).await.unwrap()
    }

    pub(crate) async fn session(&self) -> Session {
        self.store.get_session(self.tenant, &SessionRef::Id(self.session)).await.unwrap()
    }

    pub(crate) async fn events_of(&self, run: RunId) -> Vec<Event> {
        self.events().await.into_iter().filter(|event| event.run == Some(run)).collect()
    }

    /// The names of a run's events, in order.
    pub(crate) async fn event_names(&self, run: RunId) -> Vec<&'static str> {
        self.events_of(run).await.iter().map(|event| event.body.name()).collect()
    }

    /// The codes of failed model calls.
    pub(crate) async fn failed_model_calls(&self, run: RunId) -> Vec<String> {
        let failed = self.events_of(run).await.into_iter().filter_map(|event| match event.body {
            EventBody::ModelFailed { failure, .. } => Some(failure.code),
            _ => None,
        });
        failed.collect()
    }
}
