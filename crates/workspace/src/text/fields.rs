//! Taking values out of a map, and saying what is wrong with them.

use std::{cell::RefCell, fmt};

use super::{
    check::is_name,
    tree::{Entry, Kind, Node, Position, Text, Value, quoted},
};
use crate::report::Place;

/// The fields of a map. What is asked for is known; what was never asked for is reported by [`Fields::finish`].
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    pub at: Position,
    pub place: &'a Place<'a>,
    entries: &'a [Entry],
    /// The way here, such as `policy.`.
    prefix: String,
    asked: RefCell<Vec<&'static str>>,
}

/// Values of lists that may be long because someone is hostile.
const MAX_ITEMS: usize = 256;

impl<'a> Fields<'a> {
    /// The fields of a definition; an error unless it is a map.
    pub(crate) fn of(node: &'a Node, what: &str, place: &'a Place<'a>) -> Option<Self> {
        Self::nested(node, what, String::new(), place)
    }

    /// As if there were no fields.
    pub(crate) fn none(place: &'a Place<'a>) -> Self {
        Self { at: Position::FILE, place, entries: &[], prefix: String::new(), asked: RefCell::default() }
    }

    fn nested(node: &'a Node, what: &str, prefix: String, place: &'a Place<'a>) -> Option<Self> {
        match &node.value {
            Value::Map(entries) => {
                Some(Self { at: node.at, place, entries, prefix, asked: RefCell::default() })
            }
            Value::Unusable => None,
            _ => {
                place.error(node.at, format!("{what}: expected a map, found {}", node.kind_name()));
                None
            }
        }
    }

    /// All entries, for maps whose keys are names.
    pub(crate) fn entries(&self) -> &'a [Entry] {
        self.entries
    }

    /// The full name of a field.
    pub(crate) fn name(&self, key: impl fmt::Display) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A field that says something.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.asked.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        if entry.value.is_nothing() {
            self.place.warn(entry.at, format!("{}: is empty and ignored", self.name(key)));
            return None;
        }
        (!matches!(entry.value.value, Value::Unusable)).then_some(&entry.value)
    }

    /// Says that a field is wrong.
    pub(crate) fn expected(&self, key: &str, node: &Node, expected: impl fmt::Display) {
        let message = format!("{}: expected {expected}, found {}", self.name(key), node.found());
        self.place.error(node.at, message);
    }

    pub(crate) fn text(&self, key: &'static str) -> Option<Text> {
        let node = self.get(key)?;
        self.as_text(key, node)
    }

    /// A text that has to be there.
    pub(crate) fn required(&self, key: &'static str) -> Option<Text> {
        let text = self.text(key);
        self.need(key, "text");
        text
    }

    /// Says that a field is missing, if it is.
    pub(crate) fn need(&self, key: &str, expected: &str) {
        let present = self.entries.iter().any(|entry| entry.key == key && !entry.value.is_nothing());
        if !present {
            self.place.error(self.at, format!("{}: is missing, expected {expected}", self.name(key)));
        }
    }

    pub(crate) fn as_text(&self, key: &str, node: &Node) -> Option<Text> {
        if let Value::Scalar(scalar) = &node.value {
            match scalar.kind() {
                Kind::Text(text) => {
                    return Some(Text { text: text.to_owned(), at: node.at, hidden: scalar.hidden });
                }
                Kind::Number(_) | Kind::Boolean(_) => {
                    // What came from the environment was always meant as text.
                    if scalar.hidden {
                        return Some(Text { text: scalar.text.clone(), at: node.at, hidden: true });
                    }
                    let message = format!(
                        "{}: expected text, found {}: put it in quotes",
                        self.name(key),
                        node.found()
                    );
                    self.place.error(node.at, message);
                    return None;
                }
                Kind::Nothing => {}
            }
        }
        self.expected(key, node, "text");
        None
    }

    /// A text of which nothing may be shown.
    pub(crate) fn secret(&self, key: &'static str) -> Option<String> {
        let node = self.get(key)?;
        self.as_secret(key, node)
    }

    pub(crate) fn as_secret(&self, key: &str, node: &Node) -> Option<String> {
        if let Value::Scalar(scalar) = &node.value
            && (scalar.hidden || matches!(scalar.kind(), Kind::Text(_)))
        {
            return Some(scalar.text.clone());
        }
        if !matches!(node.value, Value::Unusable) {
            let message = format!("{}: expected text in quotes, found {}", self.name(key), node.kind_name());
            self.place.error(node.at, message);
        }
        None
    }

    pub(crate) fn boolean(&self, key: &'static str) -> Option<bool> {
        let node = self.get(key)?;
        match &node.value {
            Value::Scalar(scalar) => match scalar.kind() {
                Kind::Boolean(value) => return Some(value),
                _ => self.expected(key, node, "true or false"),
            },
            _ => self.expected(key, node, "true or false"),
        }
        None
    }

    pub(crate) fn number(&self, key: &'static str, min: f64, max: f64) -> Option<f64> {
        let node = self.get(key)?;
        if let Value::Scalar(scalar) = &node.value
            && let Kind::Number(value) = scalar.kind()
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
            && let (Kind::Number(_), Ok(value)) = (scalar.kind(), scalar.text.parse())
            && (min..=max).contains(&value)
        {
            return Some(value);
        }
        self.expected(key, node, format_args!("a whole number from {min} to {max}"));
        None
    }

    /// One of several words.
    pub(crate) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let node = self.get(key)?;
        self.as_choice(key, node, choices)
    }

    pub(crate) fn as_choice<T: Copy>(&self, key: &str, node: &Node, choices: &[(&str, T)]) -> Option<T> {
        if let Value::Scalar(scalar) = &node.value
            && let Kind::Text(text) = scalar.kind()
            && let Some((_, choice)) = choices.iter().find(|(word, _)| *word == text)
        {
            return Some(*choice);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.expected(key, node, one_of(&words));
        None
    }

    /// A list of different texts.
    pub(crate) fn texts(&self, key: &'static str) -> Option<Vec<Text>> {
        let node = self.get(key)?;
        self.as_texts(key, node)
    }

    pub(crate) fn as_texts(&self, key: &str, node: &Node) -> Option<Vec<Text>> {
        let Value::List(items) = &node.value else {
            self.expected(key, node, "a list");
            return None;
        };
        if items.len() > MAX_ITEMS {
            let message = format!("{}: expected at most {MAX_ITEMS} items", self.name(key));
            self.place.error(node.at, message);
            return None;
        }
        let mut texts: Vec<Text> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if matches!(item.value, Value::Unusable) {
                continue;
            }
            let Some(text) = self.as_text(&format!("{key}[{index}]"), item) else { continue };
            if texts.iter().any(|other| other.text == text.text) {
                let message = format!("{}: {} is there twice", self.name(key), text.shown());
                self.place.warn(item.at, message);
            } else {
                texts.push(text);
            }
        }
        Some(texts)
    }

    /// A list of names.
    pub(crate) fn names(&self, key: &'static str) -> Option<Vec<Text>> {
        let names = self.texts(key)?;
        for name in &names {
            if !is_name(&name.text) {
                let message = format!("{}: expected a name, found {}", self.name(key), name.shown());
                self.place.error(name.at, message);
            }
        }
        Some(names)
    }

    pub(crate) fn map(&self, key: &'static str) -> Option<Self> {
        let node = self.get(key)?;
        self.as_map(key, node)
    }

    /// A map that is judged on its own: what is wrong in it is told to another place.
    pub(crate) fn part(&self, key: &'static str, place: &'a Place<'a>) -> Option<Self> {
        let node = self.get(key)?;
        let name = self.name(key);
        Self::nested(node, &name, format!("{name}."), place)
    }

    pub(crate) fn as_map(&self, key: &str, node: &'a Node) -> Option<Self> {
        let name = self.name(key);
        Self::nested(node, &name, format!("{name}."), self.place)
    }

    /// Says what nobody asked for. Only a warning: definitions of newer versions shall still work.
    pub(crate) fn finish(&self) {
        const MAX_UNKNOWN: usize = 20;
        let asked = self.asked.borrow();
        let unknown = self.entries.iter().filter(|entry| !asked.contains(&entry.key.as_str()));
        for entry in unknown.take(MAX_UNKNOWN) {
            let key = quoted(&entry.key);
            let within = self.prefix.strip_suffix('.').map(|path| format!(" of {path}")).unwrap_or_default();
            let hint = self.place.hint(&entry.key, asked.iter().copied());
            self.place.warn(entry.at, format!("the key {key}{within} is unknown and ignored{hint}"));
        }
    }
}

/// `a, b or c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
