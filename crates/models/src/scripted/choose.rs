//! Which turn comes next.

use serde_saphyr::Spanned;

use super::scenario::{Conversation, On, Scenario, Turn, When};
use crate::{ChatMessage, ChatRole, Content, Request, ToolChoice};

/// A conversation as far as it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) request: &'a Request,
    pub(super) messages: &'a [ChatMessage],
    /// The first message after the question.
    answers_from: usize,
}

impl<'a> View<'a> {
    pub(super) fn of(request: &'a Request) -> Self {
        let messages = request.messages.as_slice();
        let answers_from = messages.iter().rposition(is_question).map_or(0, |at| at + 1);
        Self { request, messages, answers_from }
    }

    /// As it was before a later message of the same exchange.
    fn before(self, end: usize) -> Self {
        Self { messages: &self.messages[..end], ..self }
    }

    /// The number of the next answer to the question, from 1.
    pub(super) fn turn(&self) -> usize {
        1 + self.answers().count()
    }

    /// Where the answers to the question are.
    fn answers(&self) -> impl Iterator<Item = usize> {
        let from = self.answers_from;
        (from..self.messages.len()).filter(|at| self.messages[*at].role == ChatRole::Assistant)
    }

    /// What is answered: all that the user said at once.
    pub(super) fn question(&self) -> String {
        let asked = &self.messages[..self.answers_from];
        let first = asked.iter().rposition(|message| !is_question(message)).map_or(0, |at| at + 1);
        let texts: Vec<_> = asked[first..].iter().flat_map(texts).collect();
        texts.join("\n")
    }

    /// How many questions there were, with this one.
    fn questions(&self) -> usize {
        let asked = self.messages[..self.answers_from].iter().map(is_question);
        asked.fold((0, false), |(count, before), is| (count + usize::from(is && !before), is)).0
    }

    /// What the user said last, be it between the results of tools.
    pub(super) fn user(&self) -> String {
        let (asked, since) = self.messages.split_at(self.answers_from);
        let newest =
            since.iter().rfind(|message| message.role == ChatRole::User && texts(message).next().is_some());
        match newest {
            Some(message) => texts(message).collect::<Vec<_>>().join("\n"),
            None if asked.is_empty() => String::new(),
            None => self.question(),
        }
    }

    /// What the tools of the last answer said, and whether that is an error.
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

/// Whether something new begins with a message.
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
    pub(super) fn choose(&self, view: &View<'_>) -> Option<&Turn> {
        let conversation = self.conversations.iter().find(|conversation| conversation.on.holds(view));
        let turns = conversation.map_or(&self.turns, |conversation: &Conversation| &conversation.turns);
        let otherwise = conversation.and_then(|conversation| conversation.otherwise.as_ref());
        let chosen = replay(turns, view).map(|at| &turns[at]).or(otherwise).or(self.otherwise.as_ref());
        chosen.map(|turn| &turn.value)
    }
}

/// Goes through the answers that were given already, to know which turns are used up.
fn replay(turns: &[Spanned<Turn>], view: &View<'_>) -> Option<usize> {
    let mut used = vec![0; turns.len()];
    for answer in view.answers() {
        if let Some(at) = pick(turns, &used, &view.before(answer)) {
            used[at] += 1;
        }
    }
    pick(turns, &used, view)
}

fn pick(turns: &[Spanned<Turn>], used: &[u32], view: &View<'_>) -> Option<usize> {
    let fits = |at: &usize| {
        let turn = &turns[*at].value;
        let when = turn.when.as_ref().is_some_and(|when| when.holds(view));
        when && turn.repeat.is_none_or(|most| used[*at] < most.get())
    };
    let next = |at: &usize| {
        let turn = &turns[*at].value;
        turn.when.is_none() && used[*at] < turn.repeat.map_or(1, |times| times.get())
    };
    (0..turns.len()).find(fits).or_else(|| (0..turns.len()).find(next))
}

/// Nothing is wanted, or it is so.
fn met<T>(wanted: Option<&T>, is: impl FnOnce(&T) -> bool) -> bool {
    wanted.is_none_or(is)
}

impl On {
    fn holds(&self, view: &View<'_>) -> bool {
        met(self.user_contains.as_ref(), |text| view.question().contains(text))
            && met(self.system_contains.as_ref(), |text| view.request.system.contains(text))
            && met(self.question.as_ref(), |number| view.questions() == *number)
    }
}

impl When {
    fn holds(&self, view: &View<'_>) -> bool {
        let may_call = view.request.tool_choice == ToolChoice::Auto && !view.request.tools.is_empty();
        met(self.user_contains.as_ref(), |text| view.user().contains(text))
            && met(self.tool_result_contains.as_ref(), |text| {
                view.results().any(|(result, _)| result.contains(text))
            })
            && met(self.tool_failed.as_ref(), |failed| view.results().any(|(_, error)| error) == *failed)
            && met(self.system_contains.as_ref(), |text| view.request.system.contains(text))
            && met(self.tool_offered.as_ref(), |name| {
                view.request.tools.iter().any(|tool| tool.name == *name)
            })
            && met(self.may_call.as_ref(), |wanted| may_call == *wanted)
            && met(self.turn.as_ref(), |number| view.turn() == *number)
    }
}
