//! Entry points for fuzzing: the parsers of files. Each returns the line of an error, or 0, and what came out in short.

use crate::parse::{Fault, FrontmatterStyle, Node, Value, parse_json, parse_yaml, split_frontmatter};

#[must_use]
pub fn frontmatter(text: &str) -> (usize, String) {
    let strict = split_frontmatter(text, FrontmatterStyle::Strict);
    let lenient = split_frontmatter(text, FrontmatterStyle::Lenient);
    assert!(strict.is_err() || lenient.is_ok(), "the lenient style refuses what the strict one accepts");
    let shape =
        lenient.map(|document| format!("{} {}", shape(document.head.as_ref(), 0), document.body.is_empty()));
    outcome(shape)
}

#[must_use]
pub fn yaml(text: &str) -> (usize, String) {
    outcome(parse_yaml(text, 0).map(|node| shape(node.as_ref(), 0)))
}

#[must_use]
pub fn json(text: &str) -> (usize, String) {
    let parsed = parse_json(text);
    if let Ok(plain) = serde_json::from_str::<serde_json::Value>(text) {
        // Names that occur twice, and depth, are limited only here.
        let refused = parsed.as_ref().err().map(|fault| fault.message.as_str()).unwrap_or_default();
        assert!(refused.is_empty() || !plain_and_small(&plain, text), "JSON is refused: {refused}");
    }
    outcome(parsed.map(|node| shape(Some(&node), 0)))
}

/// Certainly within all limits, and without names that occur twice.
fn plain_and_small(value: &serde_json::Value, text: &str) -> bool {
    text.matches(['{', '[']).count() < 50 && text.matches(':').count() == names(value)
}

fn names(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Object(fields) => fields.len() + fields.values().map(names).sum::<usize>(),
        serde_json::Value::Array(items) => items.iter().map(names).sum(),
        _ => 0,
    }
}

fn outcome(parsed: Result<String, Fault>) -> (usize, String) {
    match parsed {
        Ok(shape) => (0, shape),
        Err(fault) => (fault.at.line, fault.message.chars().take(60).collect()),
    }
}

/// The upper part of a tree in short.
fn shape(node: Option<&Node>, depth: usize) -> String {
    let all = |nodes: &mut dyn Iterator<Item = &Node>| -> String {
        nodes.take(4).map(|node| shape(Some(node), depth + 1)).collect()
    };
    match node.map(|node| &node.value) {
        None => "-".to_owned(),
        Some(_) if depth > 3 => ".".to_owned(),
        Some(Value::Scalar(_)) => "s".to_owned(),
        Some(Value::Unusable) => "u".to_owned(),
        Some(Value::List(items)) => format!("[{}]", all(&mut items.iter())),
        Some(Value::Map(entries)) => format!("{{{}}}", all(&mut entries.iter().map(|entry| &entry.value))),
    }
}
