//! From a transcript to what a model is asked.

use remuda_domain::{
    message::{Part, Role},
    model::ModelRef,
    tool::ToolOutcome,
};
use remuda_models::{ChatMessage, ChatRole, Content};

use super::{context, render, transcript::Outgoing};

/// Told with the last call that the agent's `max_steps` allows.
pub(super) const CONCLUDE: &str = "<system_reminder>\nThis is your last step: you have no tools any more. Conclude now. Say what \
                                   you did, what is left to do, and what you would do next.\n</system_reminder>";

/// Told to a model that answered with nothing.
pub(super) const SPEECHLESS: &str =
    "<system_reminder>\nYour answer was empty. Say something, or call a tool.\n</system_reminder>";

/// The messages in the words of [`remuda_models`]. `model` sees its own reasoning only.
pub(super) fn chat(outgoing: &[Outgoing], model: &ModelRef) -> Vec<ChatMessage> {
    let model = model.to_string();
    // Only what was thought since the newest message of the user still matters to what is thought next.
    let newest = outgoing.iter().rposition(Outgoing::is_from_user).unwrap_or(0);
    let messages = outgoing.iter().enumerate();
    let messages = messages.map(|(index, message)| one(message, (index > newest).then_some(&model)));
    messages.filter(|message| !message.content.is_empty()).collect()
}

/// One message of them. The reasoning of `thinker` is shown, no other.
pub(super) fn one(message: &Outgoing, thinker: Option<&String>) -> ChatMessage {
    match message.role {
        Role::Assistant => assistant(&message.parts, thinker),
        Role::Tool => tool(&message.parts),
        Role::User | Role::System => {
            ChatMessage { role: ChatRole::User, content: message.parts.iter().filter_map(plain).collect() }
        }
    }
}

fn plain(part: &Part) -> Option<Content> {
    match part {
        Part::Text { text } if text.is_empty() => None,
        Part::Text { text } => Some(Content::Text(text.clone())),
        Part::Summary { text, .. } => Some(Content::Text(context::introduce(text))),
        Part::Image { image } => Some(Content::Image(image.clone())),
        Part::Reasoning { .. } | Part::ToolUse { .. } | Part::ToolResult { .. } => None,
    }
}

fn assistant(parts: &[Part], thinker: Option<&String>) -> ChatMessage {
    let content = parts.iter().filter_map(|part| match part {
        Part::Reasoning { reasoning } if thinker == Some(&reasoning.model) => {
            Some(Content::Reasoning(reasoning.clone()))
        }
        Part::ToolUse { call } => Some(Content::ToolUse {
            id: call.id.to_string(),
            name: call.tool.clone(),
            arguments: call.arguments.clone(),
        }),
        other => plain(other),
    });
    ChatMessage { role: ChatRole::Assistant, content: content.collect() }
}

/// Results of calls, or calls that someone else made, which are told as a story.
fn tool(parts: &[Part]) -> ChatMessage {
    let told = parts.iter().any(|part| matches!(part, Part::ToolUse { .. }));
    let outcomes = || {
        parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        })
    };
    let content = if told {
        vec![Content::Text(story(parts, outcomes()))]
    } else {
        let result = |outcome: &ToolOutcome| Content::ToolResult {
            id: outcome.id.to_string(),
            text: render::result_text(outcome),
            is_error: outcome.status != remuda_domain::tool::CallStatus::Completed,
        };
        let images = outcomes().filter_map(render::result_image).map(Content::Image);
        outcomes().map(result).chain(images).chain(parts.iter().filter_map(plain)).collect()
    };
    ChatMessage { role: ChatRole::User, content }
}

fn story<'a>(parts: &[Part], outcomes: impl Iterator<Item = &'a ToolOutcome>) -> String {
    let mut text = "These tools were called outside of this conversation:".to_owned();
    let calls = parts.iter().filter_map(|part| match part {
        Part::ToolUse { call } => Some(call),
        _ => None,
    });
    for (call, outcome) in calls.zip(outcomes) {
        text.push_str(&format!("\n\n{} {}\n{}", call.tool, call.arguments, render::result_text(outcome)));
    }
    text
}

#[cfg(test)]
mod tests {
    use remuda_domain::{
        ToolCallId,
        message::Reasoning,
        tool::{CallStatus, ToolCall},
    };
    use serde_json::json;

    use super::*;

    fn thought(model: &str) -> Part {
        let reasoning = Reasoning { text: "hm".into(), model: model.into(), ..Reasoning::default() };
        Part::Reasoning { reasoning }
    }

    #[test]
    fn a_model_sees_its_own_newest_reasoning_only() {
        let model: ModelRef = "platform/a".parse().unwrap();
        let message = Outgoing::given;
        let outgoing = [
            message(Role::User, vec![Part::text("one")]),
            message(Role::Assistant, vec![thought("platform/a"), Part::text("old")]),
            message(Role::User, vec![Part::text("two")]),
            message(Role::Assistant, vec![thought("platform/a"), thought("platform/b"), Part::text("new")]),
        ];
        let chat = chat(&outgoing, &model);
        assert_eq!(chat[1].content, [Content::Text("old".into())]);
        assert!(matches!(&chat[3].content[..], [Content::Reasoning(_), Content::Text(_)]));
    }

    #[test]
    fn recorded_calls_are_told_as_a_story() {
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: "Bash".into(),
            arguments: json!({ "command": "ls" }),
            parallel: false,
            timeout: None,
        };
        let mut outcome = ToolOutcome::without_result(&call, CallStatus::Completed, None);
        outcome.output = json!("README.md");
        let result = Part::ToolResult { outcome };
        let recorded = Outgoing::given(Role::Tool, vec![Part::ToolUse { call }, result.clone()]);
        let answered = Outgoing::given(Role::Tool, vec![result]);
        let chat = chat(&[recorded, answered], &"platform/a".parse().unwrap());
        let Content::Text(story) = &chat[0].content[0] else { panic!("not a text") };
        assert!(story.contains("Bash") && story.contains("README.md"));
        assert!(matches!(&chat[1].content[0], Content::ToolResult { is_error: false, .. }));
    }
}
