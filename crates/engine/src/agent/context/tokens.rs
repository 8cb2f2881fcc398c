//! How many tokens something has, without the model's own tokenizer.
//!
//! Tokenizers differ, and most are not public. An estimate that is wrong by a constant factor is good enough, because what the
//! provider counted for the last question mends the next one ([`correct`]).

use std::fmt::{self, Write as _};

use remuda_domain::model::{ModelRef, Usage};
use remuda_models::{ChatMessage, Content, ToolSpec};
use serde_json::Value;

use crate::agent::{request, transcript::Outgoing};

/// A picture. Providers scale them down; what is left has between 800 and 3000 tokens.
pub(in crate::agent) const IMAGE: u64 = 2048;
/// What surrounds a message, a call, a result or a tool.
const AROUND: u64 = 8;
/// Of questions smaller than this, what the provider adds on its own is too large a part to learn from.
const LEAST_TO_LEARN_FROM: u64 = 1000;

/// Of a text. Four characters of English or code have about one token. Of other alphabets it is two, and each of the signs of
/// Chinese, Japanese and Korean, or a picture character, is one by itself: a factor for the whole text would be far off for these,
/// and too much for an English text with some dashes in it.
pub(in crate::agent) fn text(text: &str) -> u64 {
    quarters(text).div_ceil(4)
}

fn quarters(text: &str) -> u64 {
    if text.is_ascii() { text.len() as u64 } else { text.chars().map(weight).sum() }
}

/// Of a character, in quarters of a token.
pub(super) const fn weight(character: char) -> u64 {
    match character {
        '\0'..='\u{7f}' => 1,
        '\u{80}'..='\u{2e7f}' => 2,
        _ => 4,
    }
}

pub(in crate::agent) fn json(value: &Value) -> u64 {
    let mut counted = Counted(0);
    // Nothing here fails.
    write!(counted, "{value}").ok();
    counted.0.div_ceil(4)
}

/// Quarters of tokens of what is written to it, which is kept nowhere.
struct Counted(u64);

impl fmt::Write for Counted {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += quarters(text);
        Ok(())
    }
}

/// Of a message as it is sent.
pub(in crate::agent) fn message(message: &ChatMessage) -> u64 {
    let contents = message.content.iter().map(|content| match content {
        Content::Text(said) => text(said),
        Content::Image(_) => IMAGE,
        Content::Reasoning(reasoning) => {
            let hidden = [&reasoning.signature, &reasoning.redacted];
            let hidden = hidden.into_iter().flatten().map(|sealed| text(sealed));
            text(&reasoning.text) + hidden.sum::<u64>()
        }
        Content::ToolUse { id, name, arguments } => text(id) + text(name) + json(arguments) + AROUND,
        Content::ToolResult { id, text: result, .. } => text(id) + text(result) + AROUND,
    });
    if message.content.is_empty() { 0 } else { contents.sum::<u64>() + AROUND }
}

/// Of each message that is to be sent.
pub(super) fn each(outgoing: &[Outgoing], model: &ModelRef) -> Vec<u64> {
    let model = model.to_string();
    let newest = outgoing.iter().rposition(Outgoing::is_from_user).unwrap_or(0);
    let each = outgoing.iter().enumerate();
    each.map(|(index, it)| message(&request::one(it, (index > newest).then_some(&model)))).collect()
}

/// Of what goes with every question.
pub(in crate::agent) fn fixed(system: &str, tools: &[ToolSpec]) -> u64 {
    let tools =
        tools.iter().map(|tool| text(&tool.name) + text(&tool.description) + json(&tool.schema) + AROUND);
    text(system) + tools.sum::<u64>()
}

/// The last question to the same model: what was estimated, and what its provider counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Lesson {
    estimated: u64,
    counted: u64,
}

impl Lesson {
    /// Nothing if there is nothing to learn: some providers do not count, and small questions say little.
    pub(in crate::agent) fn of(estimated: u64, usage: &Usage) -> Option<Self> {
        let counted = usage.input_tokens;
        (estimated >= LEAST_TO_LEARN_FROM && counted > 0).then_some(Self { estimated, counted })
    }
}

/// How many real tokens an estimated one is.
pub(super) fn ratio(last: Option<Lesson>) -> f64 {
    last.map_or(1.0, |last| (last.counted as f64 / last.estimated as f64).clamp(0.5, 3.0))
}

/// An estimate in the light of the last one.
pub(in crate::agent) fn correct(estimate: u64, last: Option<Lesson>) -> u64 {
    scale(estimate, ratio(last))
}

/// Rounded up; what is too large for a number is the largest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "such casts stay within bounds")]
pub(super) fn scale(tokens: u64, factor: f64) -> u64 {
    (tokens as f64 * factor).ceil() as u64
}

#[cfg(test)]
mod unit {
    use remuda_domain::{
        message::{Image, Part, Reasoning},
        tool::CallStatus,
    };
    use remuda_models::ChatRole;
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::talk;

    #[test]
    fn texts_are_estimated_by_their_letters() {
        for (sample, expected) in [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("fn main() { todo!() }", 6),
            ("привет мир", 5),
            ("naïve", 2),
            ("日本語", 3),
            ("🐎🐎", 2),
        ] {
            assert_eq!(text(sample), expected, "{sample:?}");
        }
    }

    #[test]
    fn json_is_estimated_as_its_text_is() {
        let value = json!({ "path": "/tmp/ä", "lines": [1, 2.5, null, true], "text": "日本\n\"quoted\"" });
        assert_eq!(super::json(&value), text(&value.to_string()));
    }

    #[test]
    fn everything_that_is_sent_counts() {
        let of = |content| message(&ChatMessage { role: ChatRole::User, content });
        assert_eq!(of(vec![]), 0, "what has nothing in it is not sent");
        let image = Image::Url { url: "https://example.com/a.png".into() };
        assert_eq!(of(vec![Content::Image(image)]), IMAGE + AROUND);
        let sealed = Reasoning { redacted: Some("x".repeat(400)), ..Reasoning::default() };
        assert_eq!(of(vec![Content::Reasoning(sealed)]), 100 + AROUND);
        let arguments = json!({ "command": "x".repeat(400) });
        let id = "x".repeat(36);
        let usage = Content::ToolUse { id: id.clone(), name: "Bash".into(), arguments };
        assert_eq!(of(vec![usage]), 9 + 1 + 104 + 2 * AROUND);
        let result = Content::ToolResult { id, text: "x".repeat(400), is_error: false };
        assert_eq!(of(vec![result]), 9 + 100 + 2 * AROUND);
        let spec = ToolSpec { name: "Read".into(), description: "x".repeat(40), schema: json!({}) };
        assert_eq!(fixed("12345678", &[spec]), 2 + 1 + 10 + 1 + AROUND);
    }

    #[test]
    fn results_count_as_they_are_shown_and_old_thoughts_do_not() {
        let thought = |model: &str| {
            let reasoning = Reasoning { text: "x".repeat(4000), model: model.into(), ..Reasoning::default() };
            Part::Reasoning { reasoning }
        };
        let mut talk = talk();
        talk.user("one").assistant(vec![thought("platform/m"), Part::text("old")]);
        talk.user("two").assistant(vec![thought("platform/m"), Part::text("new")]);
        talk.assistant(vec![thought("platform/other"), Part::text("foreign")]);
        talk.call("Bash", json!({}), CallStatus::Completed, json!({ "stdout": "x".repeat(4000) }));
        let each = each(&talk.outgoing(), &talk.model());
        assert!(each[1] < 20 && each[3] > 1000 && each[4] < 20, "{each:?}");
        assert!((1000..1040).contains(&each[6]), "{each:?}");
    }

    #[test]
    fn what_the_provider_counted_mends_the_next_estimate() {
        let lesson =
            |estimated, input_tokens| Lesson::of(estimated, &Usage { input_tokens, ..Usage::default() });
        for (estimate, last, expected) in [
            (1000, None, 1000),
            (1000, lesson(2000, 3000), 1500),
            (1000, lesson(2000, 1500), 750),
            (1000, lesson(2000, 1), 500),
            (1000, lesson(2000, 90_000), 3000),
            (1000, lesson(2000, 0), 1000),
            (1000, lesson(0, 500), 1000),
            (1000, lesson(100, 500), 1000),
            (u64::MAX, lesson(2000, 6000), u64::MAX),
        ] {
            assert_eq!(correct(estimate, last), expected, "{estimate} {last:?}");
        }
    }
}
