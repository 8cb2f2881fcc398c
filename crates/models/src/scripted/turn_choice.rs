//! Selects the next turn of a scenario.

use serde_saphyr::Spanned;

use super::scenario::{Conversation, On, Scenario, Turn, When};
use crate::{ChatMessage, ChatRole, Content, Request, ToolChoice};

/// The state of a conversation, derived from a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConversationState<'a> {
    pub(super) request: &'a Request,
    pub(super) messages: &'a [ChatMessage],
    /// Index of the first message after the current user message.
    responses_from: usize,
}

impl<'a> ConversationState<'a> {
    pub(super) fn of(request: &'a Request) -> Self {
        let messages = request.messages.as_slice();
        let responses_from = messages.iter().rposition(is_question).map_or(0, |at| at + 1);
        Self { request, messages, responses_from }
    }

    /// The state before a later message of the same exchange.
    fn before(self, end: usize) -> Self {
        Self { messages: &self.messages[..end], ..self }
    }

    /// The number of the next response to the user message, from 1.
    pub(super) fn turn(&self) -> usize {
        1 + self.responses().count()
    }

    /// Indexes of the responses to the user message.
    fn responses(&self) -> impl Iterator<Item = usize> {
        let from = self.responses_from;
        (from..self.messages.len()).filter(|at| self.messages[*at].role == ChatRole::Assistant)
    }

    /// The user message that is responded to: all consecutive messages of the user.
    pub(super) fn question(&self) -> String {
        let until_user_message = &self.messages[..self.responses_from];
        let first =
            until_user_message.iter().rposition(|message| !is_question(message)).map_or(0, |at| at + 1);
        let texts: Vec<_> = until_user_message[first..].iter().flat_map(texts).collect();
        texts.join("\n")
    }

    /// The number of user messages, including this one.
    fn questions(&self) -> usize {
        let until_user_message = self.messages[..self.responses_from].iter().map(is_question);
        until_user_message.fold((0, false), |(count, before), is| (count + usize::from(is && !before), is)).0
    }

    /// The newest text of the user, which may be beside tool results.
    pub(super) fn user(&self) -> String {
        let (until_user_message, since) = self.messages.split_at(self.responses_from);
        let newest =
            since.iter().rfind(|message| message.role == ChatRole::User && texts(message).next().is_some());
        match newest {
            Some(message) => texts(message).collect::<Vec<_>>().join("\n"),
            None if until_user_message.is_empty() => String::new(),
            None => self.question(),
        }
    }

    /// The tool results of the last response, and whether each is an error.
    pub(super) fn results(&self) -> impl Iterator<Item = (&'a str, bool)> + use<'a> {
        let from = self
            .messages
            .iter()
            .rposition(|message| message.role == ChatRole::Assistant)
            .map_or(0, |at| at + 1);
        self.messages[from..].iter().flat_map(|message| &message.content).filter_map(
            |content| match content {
                Content::ToolResult { text, is_error, .. } => Some((text.as_str(), *is_error)),
                _ => None,
            },
        )
    }
}

/// Whether a message begins a new exchange.
fn is_question(message: &ChatMessage) -> bool {
    message.role == ChatRole::User
        && !message.content.iter().any(|content| matches!(content, Content::ToolResult { .. }))
}

fn texts(message: &ChatMessage) -> impl Iterator<Item = &str> {
    message.content.iter().filter_map(|content| match content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    })
}

impl Scenario {
    pub(super) fn choose(&self, state: &ConversationState<'_>) -> Option<&Turn> {
        let conversation = self.conversations.iter().find(|conversation| conversation.on.holds(state));
        let turns = conversation.map_or(&self.turns, |conversation: &Conversation| &conversation.turns);
        let otherwise = conversation.and_then(|conversation| conversation.otherwise.as_ref());
        let chosen = replay(turns, state).map(|at| &turns[at]).or(otherwise).or(self.otherwise.as_ref());
        chosen.map(|turn| &turn.value)
    }
}

/// Replays the responses given so far, to know which turns are used up.
fn replay(turns: &[Spanned<Turn>], state: &ConversationState<'_>) -> Option<usize> {
    let mut used = vec![0; turns.len()];
    for answer in state.responses() {
        if let Some(at) = pick(turns, &used, &state.before(answer)) {
            used[at] += 1;
        }
    }
    pick(turns, &used, state)
}

fn pick(turns: &[Spanned<Turn>], used: &[u32], state: &ConversationState<'_>) -> Option<usize> {
    let fits = |at: &usize| {
        let turn = &turns[*at].value;
        let when = turn.when.as_ref().is_some_and(|when| when.holds(state));
        when && turn.repeat.is_none_or(|most| used[*at] < most.get())
    };
    let next = |at: &usize| {
        let turn = &turns[*at].value;
        turn.when.is_none() && used[*at] < turn.repeat.map_or(1, |times| times.get())
    };
    (0..turns.len()).find(fits).or_else(|| (0..turns.len()).find(next))
}

/// Whether an optional condition holds.
fn holds_if_given<T>(condition: Option<&T>, is: impl FnOnce(&T) -> bool) -> bool {
    condition.is_none_or(is)
}

impl On {
    fn holds(&self, state: &ConversationState<'_>) -> bool {
        holds_if_given(self.user_contains.as_ref(), |text| state.question().contains(text))
            && holds_if_given(self.system_contains.as_ref(), |text| state.request.system.contains(text))
            && holds_if_given(self.question.as_ref(), |number| state.questions() == *number)
    }
}

impl When {
    fn holds(&self, state: &ConversationState<'_>) -> bool {
        let may_call = state.request.tool_choice == ToolChoice::Auto && !state.request.tools.is_empty();
        holds_if_given(self.user_contains.as_ref(), |text| state.user().contains(text))
            && holds_if_given(self.tool_result_contains.as_ref(), |text| {
                state.results().any(|(result, _)| result.contains(text))
            })
            && holds_if_given(self.tool_failed.as_ref(), |failed| {
                state.results().any(|(_, error)| error) == *failed
            })
            && holds_if_given(self.system_contains.as_ref(), |text| state.request.system.contains(text))
            && holds_if_given(self.tool_offered.as_ref(), |name| {
                state.request.tools.iter().any(|tool| tool.name == *name)
            })
            && holds_if_given(self.may_call.as_ref(), |condition| may_call == *condition)
            && holds_if_given(self.turn.as_ref(), |number| state.turn() == *number)
    }
}
