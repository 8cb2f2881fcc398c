//! Reading the sources strictly: every key must be known, every value of the kind its key has.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use crate::{
    error::{Origin, Problem},
    layer::{self, Layer},
    suggest::nearest,
    tree::Config,
};

/// Variables that start like ours and are no settings: those of the client.
const CLIENT_VARIABLES: [&str; 4] =
    ["REMUDA_ENDPOINT", "REMUDA_STREAM_ENDPOINT", "REMUDA_API_KEY", "REMUDA_CONFIG"];
const PREFIX: &str = "REMUDA_";
const TEST_PREFIX: &str = "REMUDA_TEST_";

/// Lists of something else than strings. They are empty by default, so that their kind cannot be told from it.
const LISTS_OF_TABLES: [&str; 1] = ["permissions.rules"];

/// Makes a layer of each source and collects the problems of all.
pub(crate) struct Entries {
    /// Every key with its default: the one list of what is known.
    known: Vec<(String, Value)>,
    pub(crate) problems: Vec<Problem>,
}

impl Entries {
    pub(crate) fn new() -> Self {
        Self { known: known(), problems: Vec::new() }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|(key, _)| key.as_str())
    }

    /// The keys of a TOML file.
    pub(crate) fn file(&mut self, path: &Path, text: &str) -> Layer {
        let mut layer = Layer::new(layer::FILE);
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
                let message = format!("{place}expected valid TOML: {}", one_line(error.message()));
                self.problem("", &origin, message);
                return layer;
            }
        };
        for (name, value) in table {
            match value {
                Value::Table(section) if self.is_section(&name) => {
                    for (key, value) in section {
                        self.add(&mut layer, &format!("{name}.{key}"), value, &origin);
                    }
                }
                value if self.is_section(&name) => {
                    let found = value.type_str();
                    self.problem(&name, &origin, format!("expected a section [{name}], found {found}"));
                }
                value => self.add(&mut layer, &name, value, &origin),
            }
        }
        layer
    }

    /// The `REMUDA_<SECTION>__<KEY>` variables.
    pub(crate) fn environment(&mut self, variables: &[(String, String)]) -> Layer {
        let mut layer = Layer::new(layer::ENVIRONMENT);
        for (variable, text) in variables {
            if is_foreign(variable, text) {
                continue;
            }
            let origin = Origin::Variable(variable.clone());
            let Some((key, default)) =
                self.known.iter().find(|(key, _)| variable_of(key) == *variable).cloned()
            else {
                let names: Vec<String> = self.keys().map(variable_of).collect();
                let hint = hint(nearest(variable, names.iter().map(String::as_str)));
                self.problem(
                    "",
                    &origin,
                    format!("unknown variable, expected {PREFIX}<SECTION>__<KEY>{hint}"),
                );
                continue;
            };
            self.add_text(&mut layer, &key, text, &default, &origin);
        }
        layer
    }

    /// What command-line flags set.
    pub(crate) fn command_line(&mut self, overrides: &[(String, String)]) -> Layer {
        let mut layer = Layer::new(layer::COMMAND_LINE);
        for (key, text) in overrides {
            match self.default_of(key).cloned() {
                Some(default) => self.add_text(&mut layer, key, text, &default, &Origin::CommandLine),
                None => self.add(&mut layer, key, Value::String(text.clone()), &Origin::CommandLine),
            }
        }
        layer
    }

    fn add_text(&mut self, layer: &mut Layer, key: &str, text: &str, default: &Value, origin: &Origin) {
        let value = if LISTS_OF_TABLES.contains(&key) { tables(text) } else { typed(text, default) };
        match value {
            Ok(value) => self.add(layer, key, value, origin),
            Err(message) => self.problem(key, origin, message),
        }
    }

    fn add(&mut self, layer: &mut Layer, key: &str, value: Value, origin: &Origin) {
        let Some(default) = self.default_of(key) else {
            let hint = hint(self.suggestion(key).as_deref());
            return self.problem(key, origin, format!("unknown key{hint}"));
        };
        match same_kind(key, &value, default).and_then(|()| accepted(key, value)) {
            Ok(value) => layer.set(key, value),
            Err(message) => self.problem(key, origin, message),
        }
    }

    /// The key that was probably meant: a slip of the keyboard, or a key without its section.
    fn suggestion(&self, key: &str) -> Option<String> {
        let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
        let misplaced = || {
            let mut same = self.keys().filter(|known| last(known) == last(key));
            same.next().filter(|_| same.next().is_none())
        };
        let section = || {
            nearest(key, self.keys().filter_map(|known| known.split_once('.')).map(|(section, _)| section))
        };
        nearest(key, self.keys()).or_else(misplaced).or_else(section).map(str::to_owned)
    }

    fn default_of(&self, key: &str) -> Option<&Value> {
        self.known.iter().find(|(known, _)| known == key).map(|(_, default)| default)
    }

    fn is_section(&self, name: &str) -> bool {
        self.keys().any(|key| key.split_once('.').is_some_and(|(section, _)| section == name))
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
        Value::Boolean(_) => text
            .parse()
            .map(Value::Boolean)
            .map_err(|_| format!("expected true or false, found \"{}\"", found())),
        Value::Array(_) => Ok(Value::Array(
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect(),
        )),
        _ => Ok(Value::from(text)),
    }
}

/// Reads a list of tables from text: it is written as in a file.
fn tables(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    let table = format!("list = {text}").parse::<Table>();
    let list = table.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("list"));
    list.ok_or_else(|| "expected a list as in a TOML file: [{ … }, { … }]".to_owned())
}

/// Refuses values of another kind in words that name ours instead of Rust's. The value itself is not shown: it
/// may be a secret.
fn same_kind(key: &str, value: &Value, default: &Value) -> Result<(), String> {
    let (fits, expected) = match default {
        Value::Integer(_) => match value {
            Value::Integer(number) if u32::try_from(*number).is_err() => {
                return Err(format!("expected a whole number from 0 to {}, found {number}", u32::MAX));
            }
            value => (value.is_integer(), "a whole number"),
        },
        Value::Boolean(_) => (value.is_bool(), "true or false"),
        Value::Float(_) => (value.is_integer() || value.is_float(), "a number"),
        Value::Array(_) if LISTS_OF_TABLES.contains(&key) => {
            let tables = value.as_array().is_some_and(|items| items.iter().all(Value::is_table));
            (tables, "a list of tables such as [{ … }]")
        }
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

/// Has the tree itself judge the value, in a file that holds nothing else. `config` would convert where it
/// can, and says less about what is wrong.
fn accepted(key: &str, value: Value) -> Result<config::Value, String> {
    let alone = key
        .rsplit('.')
        .fold(value.clone(), |inner, name| Value::Table(Table::from_iter([(name.to_owned(), inner)])));
    Config::deserialize(alone)
        .and_then(|_| config::Value::deserialize(value))
        .map_err(|error| one_line(error.message()))
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
