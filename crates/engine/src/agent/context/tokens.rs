//! Estimates token counts without the model's tokenizer.
//!
//! Tokenizers differ, and most are not public. An estimate that is wrong by a constant factor is good enough, because
//! the usage that the provider reports calibrates the next estimate ([`correct`]).

use std::fmt::{self, Write as _};

use remuda_domain::model::{ModelRef, Usage};
use remuda_models::{ChatMessage, Content, ToolSpec};
use serde_json::Value;

use crate::agent::{model_request, transcript::Outgoing};

/// An image. Providers scale images down to between 800 and 3000 tokens.
pub(in crate::agent) const IMAGE: u64 = 2048;
/// Overhead of a message, a call, a result or a tool.
const OVERHEAD: u64 = 8;
/// Requests smaller than this are no basis for calibration: the provider's fixed overhead weighs too much.
const MIN_CALIBRATION_TOKENS: u64 = 1000;

/// Tokens of a text. Four characters of English or code are about one token. In other alphabets it is two characters,
/// and each Chinese, Japanese or Korean character or emoji is a token by itself. One factor for the whole text would
/// be far off for these, and too high for an English text with a few dashes.
pub(in crate::agent) fn text(text: &str) -> u64 {
    quarters(text).div_ceil(4)
}

fn quarters(text: &str) -> u64 {
    if text.is_ascii() { text.len() as u64 } else { text.chars().map(weight).sum() }
}

/// Weight of a character, in quarters of a token.
pub(super) const fn weight(character: char) -> u64 {
    match character {
        '\0'..='\u{7f}' => 1,
        '\u{80}'..='\u{2e7f}' => 2,
        _ => 4,
    }
}

pub(in crate::agent) fn json(value: &Value) -> u64 {
    let mut counter = TokenCounter(0);
    // Writing to the counter cannot fail.
    write!(counter, "{value}").ok();
    counter.0.div_ceil(4)
}

/// Counts quarters of tokens of the text that is written to it.
struct TokenCounter(u64);

impl fmt::Write for TokenCounter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += quarters(text);
        Ok(())
    }
}

/// Tokens of a message as it is sent.
pub(in crate::agent) fn message(message: &ChatMessage) -> u64 {
    let contents = message.content.iter().map(|content| match content {
        Content::Text(content_text) => text(content_text),
        Content::Image(_) => IMAGE,
        Content::Reasoning(reasoning) => {
            let hidden = [&reasoning.signature, &reasoning.redacted];
            let hidden = hidden.into_iter().flatten().map(|sealed| text(sealed));
            text(&reasoning.text) + hidden.sum::<u64>()
        }
        Content::ToolUse { id, name, arguments } => text(id) + text(name) + json(arguments) + OVERHEAD,
        Content::ToolResult { id, text: result, .. } => text(id) + text(result) + OVERHEAD,
    });
    if message.content.is_empty() { 0 } else { contents.sum::<u64>() + OVERHEAD }
}

/// Tokens of each message to send.
pub(super) fn per_message(outgoing: &[Outgoing], model: &ModelRef) -> Vec<u64> {
    let model = model.to_string();
    let newest = outgoing.iter().rposition(Outgoing::is_from_user).unwrap_or(0);
    let per_message = outgoing.iter().enumerate();
    per_message
        .map(|(index, it)| message(&model_request::chat_message(it, (index > newest).then_some(&model))))
        .collect()
}

/// Tokens of the system prompt and tool definitions, which every request carries.
pub(in crate::agent) fn fixed(system: &str, tools: &[ToolSpec]) -> u64 {
    let tools =
        tools.iter().map(|tool| text(&tool.name) + text(&tool.description) + json(&tool.schema) + OVERHEAD);
    text(system) + tools.sum::<u64>()
}

/// Estimated and reported tokens of the last call of the same model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct TokenCalibration {
    estimated: u64,
    reported: u64,
}

impl TokenCalibration {
    /// `None` if the call is no basis: some providers report no usage, and small requests say little.
    pub(in crate::agent) fn of(estimated: u64, usage: &Usage) -> Option<Self> {
        let reported = usage.input_tokens;
        (estimated >= MIN_CALIBRATION_TOKENS && reported > 0).then_some(Self { estimated, reported })
    }
}

/// Model tokens per estimated token.
pub(super) fn ratio(calibration: Option<TokenCalibration>) -> f64 {
    calibration.map_or(1.0, |calibration| {
        (calibration.reported as f64 / calibration.estimated as f64).clamp(0.5, 3.0)
    })
}

/// The calibrated estimate.
pub(in crate::agent) fn correct(estimate: u64, calibration: Option<TokenCalibration>) -> u64 {
    scale(estimate, ratio(calibration))
}

/// Rounds up, and saturates.
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
    use crate::agent::context::tests::conversation;

    #[test]
    fn text_estimate_depends_on_the_script() {
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
    fn json_estimate_equals_that_of_its_text() {
        let value = json!({ "path": "/tmp/ä", "lines": [1, 2.5, null, true], "text": "日本\n\"quoted\"" });
        assert_eq!(super::json(&value), text(&value.to_string()));
    }

    #[test]
    fn every_kind_of_content_counts() {
        let of = |content| message(&ChatMessage { role: ChatRole::User, content });
        assert_eq!(of(vec![]), 0, "an empty message is not sent");
        let image = Image::Url { url: "https://example.com/a.png".into() };
        assert_eq!(of(vec![Content::Image(image)]), IMAGE + OVERHEAD);
        let sealed = Reasoning { redacted: Some("x".repeat(400)), ..Reasoning::default() };
        assert_eq!(of(vec![Content::Reasoning(sealed)]), 100 + OVERHEAD);
        let arguments = json!({ "command": "x".repeat(400) });
        let id = "x".repeat(36);
        let usage = Content::ToolUse { id: id.clone(), name: "Bash".into(), arguments };
        assert_eq!(of(vec![usage]), 9 + 1 + 104 + 2 * OVERHEAD);
        let result = Content::ToolResult { id, text: "x".repeat(400), is_error: false };
        assert_eq!(of(vec![result]), 9 + 100 + 2 * OVERHEAD);
        let spec = ToolSpec { name: "Read".into(), description: "x".repeat(40), schema: json!({}) };
        assert_eq!(fixed("12345678", &[spec]), 2 + 1 + 10 + 1 + OVERHEAD);
    }

    #[test]
    fn results_count_as_rendered_and_old_reasoning_does_not_count() {
        let thought = |model: &str| {
            let reasoning = Reasoning { text: "x".repeat(4000), model: model.into(), ..Reasoning::default() };
            Part::Reasoning { reasoning }
        };
        let mut conversation = conversation();
        conversation.user("one").assistant(vec![thought("platform/m"), Part::text("old")]);
        conversation.user("two").assistant(vec![thought("platform/m"), Part::text("new")]);
        conversation.assistant(vec![thought("platform/other"), Part::text("foreign")]);
        conversation.call("Bash", json!({}), CallStatus::Completed, json!({ "stdout": "x".repeat(4000) }));
        let per_message = per_message(&conversation.outgoing(), &conversation.model());
        assert!(per_message[1] < 20 && per_message[3] > 1000 && per_message[4] < 20, "{per_message:?}");
        assert!((1000..1040).contains(&per_message[6]), "{per_message:?}");
    }

    #[test]
    fn reported_usage_calibrates_the_next_estimate() {
        let calibration = |estimated, input_tokens| {
            TokenCalibration::of(estimated, &Usage { input_tokens, ..Usage::default() })
        };
        for (estimate, calibration, expected) in [
            (1000, None, 1000),
            (1000, calibration(2000, 3000), 1500),
            (1000, calibration(2000, 1500), 750),
            (1000, calibration(2000, 1), 500),
            (1000, calibration(2000, 90_000), 3000),
            (1000, calibration(2000, 0), 1000),
            (1000, calibration(0, 500), 1000),
            (1000, calibration(100, 500), 1000),
            (u64::MAX, calibration(2000, 6000), u64::MAX),
        ] {
            assert_eq!(correct(estimate, calibration), expected, "{estimate} {calibration:?}");
        }
    }
}
