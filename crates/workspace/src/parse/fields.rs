//! Extracts typed values from a map and reports invalid ones.

use std::{cell::RefCell, fmt};

use super::{
    names::is_name,
    tree::{Entry, LocatedText, Node, Position, ScalarKind, Value, quoted},
};
use crate::report::Reporter;

/// The fields of a map. Each key that is read becomes a known key; [`Fields::finish`] reports all others.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    pub at: Position,
    pub reporter: &'a Reporter<'a>,
    entries: &'a [Entry],
    /// The path of the map, such as `policy.`.
    prefix: String,
    known_keys: RefCell<Vec<&'static str>>,
}

/// Limit for lists, since a hostile file may have long ones.
const MAX_ITEMS: usize = 256;

impl<'a> Fields<'a> {
    /// The fields of a definition; reports an error unless it is a map.
    pub(crate) fn from_node(node: &'a Node, what: &str, reporter: &'a Reporter<'a>) -> Option<Self> {
        Self::nested(node, what, String::new(), reporter)
    }

    /// An empty map.
    pub(crate) fn empty(reporter: &'a Reporter<'a>) -> Self {
        Self {
            at: Position::FILE,
            reporter,
            entries: &[],
            prefix: String::new(),
            known_keys: RefCell::default(),
        }
    }

    fn nested(node: &'a Node, what: &str, prefix: String, reporter: &'a Reporter<'a>) -> Option<Self> {
        match &node.value {
            Value::Map(entries) => {
                Some(Self { at: node.at, reporter, entries, prefix, known_keys: RefCell::default() })
            }
            Value::Unusable => None,
            _ => {
                reporter.error(node.at, format!("{what}: expected a map, found {}", node.kind_name()));
                None
            }
        }
    }

    /// All entries, for maps with arbitrary keys.
    pub(crate) fn entries(&self) -> &'a [Entry] {
        self.entries
    }

    /// The full path of a field.
    pub(crate) fn name(&self, key: impl fmt::Display) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value of a field, unless it is missing, empty or unusable.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.known_keys.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        if entry.value.is_null() {
            self.reporter.warn(entry.at, format!("{}: is empty and ignored", self.name(key)));
            return None;
        }
        (!matches!(entry.value.value, Value::Unusable)).then_some(&entry.value)
    }

    /// Reports that a field has an unexpected value.
    pub(crate) fn expected(&self, key: &str, node: &Node, expected: impl fmt::Display) {
        let message = format!("{}: expected {expected}, found {}", self.name(key), node.display_value());
        self.reporter.error(node.at, message);
    }

    pub(crate) fn text(&self, key: &'static str) -> Option<LocatedText> {
        let node = self.get(key)?;
        self.as_text(key, node)
    }

    /// A required text.
    pub(crate) fn required_text(&self, key: &'static str) -> Option<LocatedText> {
        let text = self.text(key);
        self.require(key, "text");
        text
    }

    /// Reports a field that is missing.
    pub(crate) fn require(&self, key: &str, expected: &str) {
        let present = self.entries.iter().any(|entry| entry.key == key && !entry.value.is_null());
        if !present {
            self.reporter.error(self.at, format!("{}: is missing, expected {expected}", self.name(key)));
        }
    }

    pub(crate) fn as_text(&self, key: &str, node: &Node) -> Option<LocatedText> {
        if let Value::Scalar(scalar) = &node.value {
            match scalar.kind() {
                ScalarKind::Text(text) => {
                    return Some(LocatedText {
                        text: text.to_owned(),
                        at: node.at,
                        from_env: scalar.from_env,
                    });
                }
                ScalarKind::Number(_) | ScalarKind::Boolean(_) => {
                    // A value from the environment may look like a number but is text.
                    if scalar.from_env {
                        return Some(LocatedText { text: scalar.text.clone(), at: node.at, from_env: true });
                    }
                    let message = format!(
                        "{}: expected text, found {}: put it in quotes",
                        self.name(key),
                        node.display_value()
                    );
                    self.reporter.error(node.at, message);
                    return None;
                }
                ScalarKind::Null => {}
            }
        }
        self.expected(key, node, "text");
        None
    }

    /// A text that is never shown in messages.
    pub(crate) fn secret(&self, key: &'static str) -> Option<String> {
        let node = self.get(key)?;
        self.as_secret(key, node)
    }

    pub(crate) fn as_secret(&self, key: &str, node: &Node) -> Option<String> {
        if let Value::Scalar(scalar) = &node.value
            && (scalar.from_env || matches!(scalar.kind(), ScalarKind::Text(_)))
        {
            return Some(scalar.text.clone());
        }
        if !matches!(node.value, Value::Unusable) {
            let message = format!("{}: expected text in quotes, found {}", self.name(key), node.kind_name());
            self.reporter.error(node.at, message);
        }
        None
    }

    pub(crate) fn boolean(&self, key: &'static str) -> Option<bool> {
        let node = self.get(key)?;
        match &node.value {
            Value::Scalar(scalar) => match scalar.kind() {
                ScalarKind::Boolean(value) => return Some(value),
                _ => self.expected(key, node, "true or false"),
            },
            _ => self.expected(key, node, "true or false"),
        }
        None
    }

    pub(crate) fn number(&self, key: &'static str, min: f64, max: f64) -> Option<f64> {
        let node = self.get(key)?;
        if let Value::Scalar(scalar) = &node.value
            && let ScalarKind::Number(value) = scalar.kind()
            && (min..=max).contains(&value)
        {
            return Some(value);
        }
        self.expected(key, node, format_args!("a number from {min} to {max}"));
        None
    }

    pub(crate) fn integer(&self, key: &'static str, min: u32, max: u32) -> Option<u32> {
        let node = self.get(key)?;
        if let Value::Scalar(scalar) = &node.value
            && let (ScalarKind::Number(_), Ok(value)) = (scalar.kind(), scalar.text.parse())
            && (min..=max).contains(&value)
        {
            return Some(value);
        }
        self.expected(key, node, format_args!("a whole number from {min} to {max}"));
        None
    }

    /// One of several keywords.
    pub(crate) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let node = self.get(key)?;
        self.as_choice(key, node, choices)
    }

    pub(crate) fn as_choice<T: Copy>(&self, key: &str, node: &Node, choices: &[(&str, T)]) -> Option<T> {
        if let Value::Scalar(scalar) = &node.value
            && let ScalarKind::Text(text) = scalar.kind()
            && let Some((_, choice)) = choices.iter().find(|(word, _)| *word == text)
        {
            return Some(*choice);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.expected(key, node, one_of(&words));
        None
    }

    /// A list of distinct texts.
    pub(crate) fn texts(&self, key: &'static str) -> Option<Vec<LocatedText>> {
        let node = self.get(key)?;
        self.as_texts(key, node)
    }

    pub(crate) fn as_texts(&self, key: &str, node: &Node) -> Option<Vec<LocatedText>> {
        let Value::List(items) = &node.value else {
            self.expected(key, node, "a list");
            return None;
        };
        if items.len() > MAX_ITEMS {
            let message = format!("{}: expected at most {MAX_ITEMS} items", self.name(key));
            self.reporter.error(node.at, message);
            return None;
        }
        let mut texts: Vec<LocatedText> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if matches!(item.value, Value::Unusable) {
                continue;
            }
            let Some(text) = self.as_text(&format!("{key}[{index}]"), item) else { continue };
            if texts.iter().any(|other| other.text == text.text) {
                let message = format!("{}: {} is listed twice", self.name(key), text.display());
                self.reporter.warn(item.at, message);
            } else {
                texts.push(text);
            }
        }
        Some(texts)
    }

    /// A list of names.
    pub(crate) fn names(&self, key: &'static str) -> Option<Vec<LocatedText>> {
        let names = self.texts(key)?;
        for name in &names {
            if !is_name(&name.text) {
                let message = format!("{}: expected a name, found {}", self.name(key), name.display());
                self.reporter.error(name.at, message);
            }
        }
        Some(names)
    }

    pub(crate) fn map(&self, key: &'static str) -> Option<Self> {
        let node = self.get(key)?;
        self.as_map(key, node)
    }

    /// A nested map whose problems go to another reporter.
    pub(crate) fn map_with_reporter(&self, key: &'static str, reporter: &'a Reporter<'a>) -> Option<Self> {
        let node = self.get(key)?;
        let name = self.name(key);
        Self::nested(node, &name, format!("{name}."), reporter)
    }

    pub(crate) fn as_map(&self, key: &str, node: &'a Node) -> Option<Self> {
        let name = self.name(key);
        Self::nested(node, &name, format!("{name}."), self.reporter)
    }

    /// Warns of unknown keys. They are not errors, so that definitions for newer versions still work.
    pub(crate) fn finish(&self) {
        const MAX_UNKNOWN: usize = 20;
        let known_keys = self.known_keys.borrow();
        let unknown = self.entries.iter().filter(|entry| !known_keys.contains(&entry.key.as_str()));
        for entry in unknown.take(MAX_UNKNOWN) {
            let key = quoted(&entry.key);
            let within = self.prefix.strip_suffix('.').map(|path| format!(" of {path}")).unwrap_or_default();
            let hint = self.reporter.suggestion(&entry.key, known_keys.iter().copied());
            self.reporter.warn(entry.at, format!("the key {key}{within} is unknown and ignored{hint}"));
        }
    }
}

/// Joins words as `a, b or c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
