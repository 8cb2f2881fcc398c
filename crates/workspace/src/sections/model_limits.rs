//! Parses context window, output limit and price of a model.

use remuda_domain::{
    budget::{Micros, Price},
    model::ModelDefinition,
};

use crate::parse::{Fields, Node, ScalarKind, Value};

const MAX_WINDOW: u32 = 100_000_000;
/// Dollars per million tokens; far above any real price.
const MAX_DOLLARS: u64 = 1_000_000;

/// Parses the limits in an entry of a registry.
pub(super) fn parse(fields: &Fields<'_>) -> ModelLimits {
    let window = fields.integer("context_window", 1, MAX_WINDOW).map(u64::from);
    let output = fields.integer("max_output_tokens", 1, MAX_WINDOW).map(u64::from);
    if let (Some(window), Some(output)) = (window, output)
        && output >= window
        && let Some(node) = fields.get("max_output_tokens")
    {
        fields.expected("max_output_tokens", node, format_args!("less than context_window ({window})"));
    }
    ModelLimits { window, output, price: fields.map("price").and_then(|fields| price(&fields)) }
}

#[derive(Default)]
pub(super) struct ModelLimits {
    window: Option<u64>,
    output: Option<u64>,
    price: Option<Price>,
}

impl ModelLimits {
    pub(super) fn apply(self, model: &mut ModelDefinition) {
        // Open Agent Harness puts the context window into the free-form metadata.
        let metadata_window = ["contextWindowTokens", "max_model_len"]
            .iter()
            .find_map(|key| model.metadata.get(*key)?.as_u64());
        let metadata_window = metadata_window.filter(|window| (1..=u64::from(MAX_WINDOW)).contains(window));
        model.context_window = self.window.or(metadata_window);
        model.max_output_tokens = self.output;
        model.price = self.price;
    }
}

fn price(fields: &Fields<'_>) -> Option<Price> {
    let (input, output) = (amount(fields, "input"), amount(fields, "output"));
    for key in ["input", "output"] {
        fields.require(key, "dollars for a million tokens");
    }
    let (cached_input, cache_write) = (amount(fields, "cached_input"), amount(fields, "cache_write"));
    fields.finish();
    Some(Price { input: input?, output: output?, cached_input, cache_write })
}

fn amount(fields: &Fields<'_>, key: &'static str) -> Option<Micros> {
    let node = fields.get(key)?;
    let amount = micros_of(node).filter(|micros| *micros <= MAX_DOLLARS * 1_000_000);
    if amount.is_none() {
        let expected = format_args!("dollars for a million tokens, such as 3.00, at most {MAX_DOLLARS}");
        fields.expected(key, node, expected);
    }
    amount
}

fn micros_of(node: &Node) -> Option<Micros> {
    match &node.value {
        Value::Scalar(scalar) if matches!(scalar.kind(), ScalarKind::Number(_)) => millionths(&scalar.text),
        _ => None,
    }
}

/// Parses a decimal number into millionths. Further decimals are cut off.
fn millionths(text: &str) -> Option<u64> {
    const DECIMALS: usize = 6;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || (whole.is_empty() && decimals.is_empty()) {
        return None;
    }
    let kept: String = decimals.chars().chain("000000".chars()).take(DECIMALS).collect();
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    whole.checked_mul(1_000_000)?.checked_add(kept.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_parsed_exactly() {
        for (text, expected) in [
            ("3.00", Some(3_000_000)),
            ("3", Some(3_000_000)),
            ("0", Some(0)),
            (".5", Some(500_000)),
            ("5.", Some(5_000_000)),
            ("0.1", Some(100_000)),
            ("0.000001", Some(1)),
            ("0.0000019", Some(1)),
            ("18446744073710", None),
            ("99999999999999999999", None),
            ("-1", None),
            ("1e3", None),
            ("0x10", None),
            (".", None),
            ("", None),
            (".inf", None),
        ] {
            assert_eq!(millionths(text), expected, "{text}");
        }
    }
}
