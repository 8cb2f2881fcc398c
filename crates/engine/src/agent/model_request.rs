//! Converts the transcript into the messages of a model request.

use remuda_domain::{
    message::{Part, Role},
    model::ModelRef,
    tool::ToolOutcome,
};
use remuda_models::{ChatMessage, ChatRole, Content};

use super::{context, render, transcript::Outgoing};

/// Added to the last model call that the agent's `max_steps` allows.
pub(super) const CONCLUDE_REMINDER: &str = "<system_reminder>\nThis is your last step: you have no tools any more. Conclude now. Say what \
                                   you did, what is left to do, and what you would do next.\n</system_reminder>";

/// Added to the model call after an empty response.
pub(super) const EMPTY_RESPONSE_REMINDER: &str =
    "<system_reminder>\nYour answer was empty. Say something, or call a tool.\n</system_reminder>";

/// Converts the messages to those of [`remuda_models`]. `model` sees only its own reasoning.
pub(super) fn chat_messages(outgoing: &[Outgoing], model: &ModelRef) -> Vec<ChatMessage> {
    let model = model.to_string();
    // Only reasoning since the newest user message still matters.
    let newest = outgoing.iter().rposition(Outgoing::is_from_user).unwrap_or(0);
    let messages = outgoing.iter().enumerate();
    let messages = messages.map(|(index, message)| chat_message(message, (index > newest).then_some(&model)));
    messages.filter(|message| !message.content.is_empty()).collect()
}

/// Converts one message. Includes only the reasoning of `reasoning_model`.
pub(super) fn chat_message(message: &Outgoing, reasoning_model: Option<&String>) -> ChatMessage {
    match message.role {
        Role::Assistant => assistant(&message.parts, reasoning_model),
        Role::Tool => tool(&message.parts),
        Role::User | Role::System => ChatMessage {
            role: ChatRole::User,
            content: message.parts.iter().filter_map(text_or_image).collect(),
        },
    }
}

fn text_or_image(part: &Part) -> Option<Content> {
    match part {
        Part::Text { text } if text.is_empty() => None,
        Part::Text { text } => Some(Content::Text(text.clone())),
        Part::Summary { text, .. } => Some(Content::Text(context::introduce(text))),
        Part::Image { image } => Some(Content::Image(image.clone())),
        Part::Reasoning { .. } | Part::ToolUse { .. } | Part::ToolResult { .. } => None,
    }
}

fn assistant(parts: &[Part], reasoning_model: Option<&String>) -> ChatMessage {
    let content = parts.iter().filter_map(|part| match part {
        Part::Reasoning { reasoning } if reasoning_model == Some(&reasoning.model) => {
            Some(Content::Reasoning(reasoning.clone()))
        }
        Part::ToolUse { call } => Some(Content::ToolUse {
            id: call.id.to_string(),
            name: call.tool.clone(),
            arguments: call.arguments.clone(),
        }),
        other => text_or_image(other),
    });
    ChatMessage { role: ChatRole::Assistant, content: content.collect() }
}

/// Tool results, or calls made outside of the conversation, which are rendered as text.
fn tool(parts: &[Part]) -> ChatMessage {
    let has_calls = parts.iter().any(|part| matches!(part, Part::ToolUse { .. }));
    let outcomes = || {
        parts.iter().filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        })
    };
    let content = if has_calls {
        vec![Content::Text(external_calls_text(parts, outcomes()))]
    } else {
        let result = |outcome: &ToolOutcome| Content::ToolResult {
            id: outcome.id.to_string(),
            text: render::result_text(outcome),
            is_error: outcome.status != remuda_domain::tool::CallStatus::Completed,
        };
        let images = outcomes().filter_map(render::result_image).map(Content::Image);
        outcomes().map(result).chain(images).chain(parts.iter().filter_map(text_or_image)).collect()
    };
    ChatMessage { role: ChatRole::User, content }
}

fn external_calls_text<'a>(parts: &[Part], outcomes: impl Iterator<Item = &'a ToolOutcome>) -> String {
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
    fn model_sees_only_its_own_newest_reasoning() {
        let model: ModelRef = "platform/a".parse().unwrap();
        let message = Outgoing::inserted;
        let outgoing = [
            message(Role::User, vec![Part::text("one")]),
            message(Role::Assistant, vec![thought("platform/a"), Part::text("old")]),
            message(Role::User, vec![Part::text("two")]),
            message(Role::Assistant, vec![thought("platform/a"), thought("platform/b"), Part::text("new")]),
        ];
        let chat_messages = chat_messages(&outgoing, &model);
        assert_eq!(chat_messages[1].content, [Content::Text("old".into())]);
        assert!(matches!(&chat_messages[3].content[..], [Content::Reasoning(_), Content::Text(_)]));
    }

    #[test]
    fn external_calls_are_rendered_as_text() {
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
        let recorded = Outgoing::inserted(Role::Tool, vec![Part::ToolUse { call }, result.clone()]);
        let answered = Outgoing::inserted(Role::Tool, vec![result]);
        let chat_messages = chat_messages(&[recorded, answered], &"platform/a".parse().unwrap());
        let Content::Text(external_calls_text) = &chat_messages[0].content[0] else { panic!("not a text") };
        assert!(external_calls_text.contains("Bash") && external_calls_text.contains("README.md"));
        assert!(matches!(&chat_messages[1].content[0], Content::ToolResult { is_error: false, .. }));
    }
}
