//! What the sources say: a flat list of keys with their values and where each came from.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use crate::{
    error::{Origin, Problem},
    suggest::nearest,
    tree::Config,
};

/// Variables that start like ours and are no settings: those of the client.
const CLIENT_VARIABLES: [&str; 4] =
    ["REMUDA_ENDPOINT", "REMUDA_STREAM_ENDPOINT", "REMUDA_API_KEY", "REMUDA_CONFIG"];
const PREFIX: &str = "REMUDA_";
const TEST_PREFIX: &str = "REMUDA_TEST_";

/// One setting as a source gives it.
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// Collects entries and problems of all sources, in the order in which they overrule each other.
pub(crate) struct Entries {
    /// Every key with its default: the one list of what is known.
    known: Vec<(String, Value)>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) problems: Vec<Problem>,
}

impl Entries {
    pub(crate) fn new() -> Self {
        Self { known: known(), entries: Vec::new(), problems: Vec::new() }
    }

    /// Adds the keys of a TOML file.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) {
        let origin = Origin::File(path.to_owned());
        let table = match text.parse::<Table>() {
            Ok(table) => table,
            // The error's own text quotes the line, which may hold a password.
            Err(error) => {
                let line = error
                    .span()
                    .and_then(|span| text.get(..span.start))
                    .map(|before| before.matches('\n').count() + 1);
                let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
                return self.problem(
                    "",
                    &origin,
                    format!("{place}expected valid TOML: {}", one_line(error.message())),
                );
            }
        };
        for (name, value) in table {
            match value {
                Value::Table(section) if self.is_section(&name) => {
                    for (key, value) in section {
                        self.add(&format!("{name}.{key}"), value, &origin);
                    }
                }
                value if self.is_section(&name) => {
                    let found = value.type_str();
                    self.problem(&name, &origin, format!("expected a section [{name}], found {found}"));
                }
                value => self.add(&name, value, &origin),
            }
        }
    }

    /// Adds `REMUDA_<SECTION>__<KEY>` variables.
    pub(crate) fn add_environment(&mut self, variables: &[(String, String)]) {
        for (variable, text) in variables {
            if is_foreign(variable, text) {
                continue;
            }
            let origin = Origin::Variable(variable.clone());
            let Some((key, default)) =
                self.known.iter().find(|(key, _)| variable_of(key) == *variable).cloned()
            else {
                let names: Vec<String> = self.known.iter().map(|(key, _)| variable_of(key)).collect();
                let hint = hint(nearest(variable, names.iter().map(String::as_str)));
                self.problem(
                    "",
                    &origin,
                    format!("unknown variable, expected {PREFIX}<SECTION>__<KEY>{hint}"),
                );
                continue;
            };
            self.add_text(&key, text, &default, &origin);
        }
    }

    /// Adds what command-line flags set.
    pub(crate) fn add_overrides(&mut self, overrides: &[(String, String)]) {
        for (key, text) in overrides {
            match self.default_of(key).cloned() {
                Some(default) => self.add_text(key, text, &default, &Origin::CommandLine),
                None => self.add(key, Value::String(text.clone()), &Origin::CommandLine),
            }
        }
    }

    fn add_text(&mut self, key: &str, text: &str, default: &Value, origin: &Origin) {
        match typed(text, default) {
            Ok(value) => self.add(key, value, origin),
            Err(message) => self.problem(key, origin, message),
        }
    }

    fn add(&mut self, key: &str, value: Value, origin: &Origin) {
        let Some(default) = self.default_of(key) else {
            let hint = hint(self.suggestion(key).as_deref());
            return self.problem(key, origin, format!("unknown key{hint}"));
        };
        let checked = same_kind(&value, default).and_then(|()| {
            let mut alone = Table::new();
            insert(&mut alone, key, value.clone());
            Config::deserialize(alone).map_err(|error| one_line(error.message()))
        });
        match checked {
            Ok(_) => self.entries.push(Entry { key: key.to_owned(), value, origin: origin.clone() }),
            Err(message) => self.problem(key, origin, message),
        }
    }

    /// The key that was probably meant: a slip of the keyboard, or a key without its section.
    fn suggestion(&self, key: &str) -> Option<String> {
        let keys = || self.known.iter().map(|(key, _)| key.as_str());
        let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
        let misplaced = || {
            let mut same = keys().filter(|known| last(known) == last(key));
            same.next().filter(|_| same.next().is_none())
        };
        let section =
            || nearest(key, keys().filter_map(|known| known.split_once('.')).map(|(section, _)| section));
        nearest(key, keys()).or_else(misplaced).or_else(section).map(str::to_owned)
    }

    fn default_of(&self, key: &str) -> Option<&Value> {
        self.known.iter().find(|(known, _)| known == key).map(|(_, default)| default)
    }

    fn is_section(&self, name: &str) -> bool {
        self.known.iter().any(|(key, _)| key.split_once('.').is_some_and(|(section, _)| section == name))
    }

    fn problem(&mut self, key: &str, origin: &Origin, message: String) {
        self.problems.push(Problem { key: key.to_owned(), origin: origin.clone(), message });
    }
}

/// Every key of [`Config`] with its default.
pub(crate) fn known() -> Vec<(String, Value)> {
    let tree = Table::try_from(Config::default()).unwrap_or_default();
    let mut known = Vec::new();
    for (name, value) in tree {
        match value {
            Value::Table(section) => {
                known.extend(section.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => known.push((name, value)),
        }
    }
    known
}

/// Puts a value into the table of its section.
pub(crate) fn insert(table: &mut Table, key: &str, value: Value) {
    let Some((section, name)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(section) = section {
        section.insert(name.to_owned(), value);
    }
}

pub(crate) fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_ascii_uppercase())
}

/// Whether a variable is none of our settings.
fn is_foreign(variable: &str, text: &str) -> bool {
    !variable.starts_with(PREFIX)
        || variable.starts_with(TEST_PREFIX)
        || CLIENT_VARIABLES.contains(&variable)
        || is_service_link(variable, text)
}

/// Kubernetes tells every pod about the services of its namespace in variables named after them. A service called
/// `remuda` or `remuda-stream` gives names that start like ours (`REMUDA_STREAM_PORT_7778_TCP_ADDR`).
fn is_service_link(variable: &str, text: &str) -> bool {
    if variable.contains("__") {
        return false;
    }
    let port_details = variable.split_once("_PORT_").is_some_and(|(_, rest)| {
        rest.starts_with(|c: char| c.is_ascii_digit()) || variable.contains("_SERVICE_PORT_")
    });
    variable.ends_with("_SERVICE_HOST")
        || variable.ends_with("_SERVICE_PORT")
        || port_details
        || (variable.ends_with("_PORT") && text.contains("://"))
}

/// Reads text from the environment or the command line as the kind of value its key has.
fn typed(text: &str, default: &Value) -> Result<Value, String> {
    // What is left of bytes that were no UTF-8.
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err("expected UTF-8 text".to_owned());
    }
    let found = || text.chars().take(40).flat_map(char::escape_debug).collect::<String>();
    match default {
        Value::Integer(_) => text
            .parse()
            .map(Value::Integer)
            .map_err(|_| format!("expected a whole number, found \"{}\"", found())),
        Value::Float(_) => {
            text.parse().map(Value::Float).map_err(|_| format!("expected a number, found \"{}\"", found()))
        }
        Value::Array(_) => Ok(Value::Array(
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect(),
        )),
        _ => Ok(Value::from(text)),
    }
}

/// Refuses values of another kind in words that name ours instead of Rust's. The value itself is not shown: it
/// may be a secret.
fn same_kind(value: &Value, default: &Value) -> Result<(), String> {
    let (fits, expected) = match default {
        Value::Integer(_) => match value {
            Value::Integer(number) if u32::try_from(*number).is_err() => {
                return Err(format!("expected a whole number from 0 to {}, found {number}", u32::MAX));
            }
            value => (value.is_integer(), "a whole number"),
        },
        Value::Float(_) => (value.is_integer() || value.is_float(), "a number"),
        Value::Array(_) => {
            let strings = value.as_array().is_some_and(|items| items.iter().all(Value::is_str));
            (strings, "a list of strings")
        }
        _ => (value.is_str(), "a string in quotes"),
    };
    if fits { Ok(()) } else { Err(format!("expected {expected}, found {}", kind_of(value))) }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Array(items) if !items.iter().all(Value::is_str) => "a list of something else".to_owned(),
        value => value.type_str().to_owned(),
    }
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
