//! What a run left behind, as tests look at it.

use remuda_domain::{
    Event, EventBody, Run, RunId, ToolCallId,
    content::ContentHash,
    message::{Message, Part, Role},
    session::{Session, SessionRef},
    step::{ModelOutcome, ModelRequest, Sent, StepWork},
    tool::{ToolCall, ToolOutcome},
};
use remuda_transport::{DeltaSource, Transport as _};

use crate::lab::Lab;

/// A message as it was sent, and whether it was made for the purpose.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rebuilt {
    pub(crate) role: Role,
    pub(crate) parts: Vec<Part>,
    pub(crate) given: bool,
}

pub(crate) fn uses(parts: &[Part]) -> Vec<&ToolCall> {
    let uses = parts.iter().filter_map(|part| match part {
        Part::ToolUse { call } => Some(call),
        _ => None,
    });
    uses.collect()
}

pub(crate) fn results(parts: &[Part]) -> Vec<&ToolOutcome> {
    let results = parts.iter().filter_map(|part| match part {
        Part::ToolResult { outcome } => Some(outcome),
        _ => None,
    });
    results.collect()
}

/// `completed`, or how else it ended with the code of its failure.
pub(crate) fn verdict(outcome: &ToolOutcome) -> String {
    let code = outcome.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default();
    format!("{} {code}", outcome.status.as_str()).trim().to_owned()
}

pub(crate) fn verdicts(run: &Run) -> Vec<String> {
    run.outcomes.iter().map(verdict).collect()
}

/// The code of a run's failure.
pub(crate) fn code(run: &Run) -> &str {
    run.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default()
}

pub(crate) fn text(message: &Rebuilt) -> String {
    remuda_domain::message::text_of(&message.parts)
}

/// Every use has exactly one result, in the message after it and in the order of the calls.
pub(crate) fn assert_complete<'a>(messages: impl IntoIterator<Item = (Role, &'a [Part])>) {
    let mut open: Vec<ToolCallId> = Vec::new();
    for (role, parts) in messages {
        let given: Vec<ToolCallId> = results(parts).iter().map(|outcome| outcome.id).collect();
        // Calls that someone else made are told with their results.
        let asked: Vec<ToolCallId> = uses(parts).iter().map(|call| call.id).collect();
        match role {
            Role::Tool if asked.is_empty() => assert_eq!(std::mem::take(&mut open), given),
            Role::Tool => assert_eq!(asked, given),
            _ => {
                assert_eq!(open, [], "calls without results before {parts:?}");
                assert_eq!(given, []);
                open = asked;
            }
        }
    }
    assert_eq!(open, [], "calls without results at the end");
}

impl Lab {
    pub(crate) async fn assert_complete(&self) {
        let messages = self.messages().await;
        assert_complete(messages.iter().map(|message| (message.role, message.parts.as_slice())));
    }

    /// The questions of a run with what came of them.
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

    /// What the record says that was sent.
    pub(crate) async fn rebuild(&self, request: &ModelRequest) -> Vec<Rebuilt> {
        let transcript = self.messages().await;
        let at = |id| transcript.iter().position(|message: &Message| message.id == id).unwrap();
        let mut rebuilt = Vec::new();
        for sent in &request.messages {
            match sent {
                Sent::Stored { first, last, count } | Sent::Cleared { first, last, count } => {
                    let stretch = transcript[at(*first)..=at(*last)].iter();
                    // A summary stands before what it is not about.
                    let is_summary =
                        |it: &&Message| it.parts.iter().any(|part| matches!(part, Part::Summary { .. }));
                    let stored: Vec<&Message> =
                        stretch.filter(|it| it.id == *first || !is_summary(it)).collect();
                    assert_eq!(stored.len(), usize::try_from(*count).unwrap());
                    let stored = stored.into_iter().cloned();
                    rebuilt.extend(stored.map(|it| Rebuilt { role: it.role, parts: it.parts, given: false }));
                }
                Sent::Given { role, parts } => {
                    rebuilt.push(Rebuilt { role: *role, parts: parts.clone(), given: true });
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

    /// The names of the tools that a question offered.
    pub(crate) async fn offered(&self, request: &ModelRequest) -> Vec<String> {
        let tools: serde_json::Value = serde_json::from_str(&self.content(request.tools).await).unwrap();
        let names = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// The pieces of what is said from now on.
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

    /// The codes of the questions that failed.
    pub(crate) async fn failed_questions(&self, run: RunId) -> Vec<String> {
        let failed = self.events_of(run).await.into_iter().filter_map(|event| match event.body {
            EventBody::ModelFailed { failure, .. } => Some(failure.code),
            _ => None,
        });
        failed.collect()
    }
}
