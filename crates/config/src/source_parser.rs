//! Parses the sources strictly: every key must be known, every value must have the type of its key.

use std::path::Path;

use remuda_domain::nearest;
use serde::Deserialize;
use toml::{Table, Value};

use crate::{
    error::{Origin, Problem},
    layer::{self, Layer},
    tree::Config,
};

/// Variables with our prefix that are not settings: those of the client.
const CLIENT_VARIABLES: [&str; 4] =
    ["REMUDA_ENDPOINT", "REMUDA_STREAM_ENDPOINT", "REMUDA_API_KEY", "REMUDA_CONFIG"];
const PREFIX: &str = "REMUDA_";
const TEST_PREFIX: &str = "REMUDA_TEST_";

/// Lists of tables. Their default is empty, so it does not show the type of their items.
const LISTS_OF_TABLES: [&str; 1] = ["permissions.rules"];

/// Parses each source into a layer and collects all problems.
pub(crate) struct SourceParser {
    /// All known keys with their defaults.
    known: Vec<(String, Value)>,
    pub(crate) problems: Vec<Problem>,
}

impl SourceParser {
    pub(crate) fn new() -> Self {
        Self { known: known_keys(), problems: Vec::new() }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|(key, _)| key.as_str())
    }

    /// Parses a TOML file.
    pub(crate) fn file(&mut self, path: &Path, text: &str) -> Layer {
        let mut layer = Layer::new(layer::FILE);
        let origin = Origin::File(path.to_owned());
        let table = match text.parse::<Table>() {
            Ok(table) => table,
            // The error's own text quotes the line, which may contain a password.
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

    /// Parses the `REMUDA_<SECTION>__<KEY>` variables.
    pub(crate) fn environment(&mut self, variables: &[(String, String)]) -> Layer {
        let mut layer = Layer::new(layer::ENVIRONMENT);
        for (variable, text) in variables {
            if is_not_a_setting(variable, text) {
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

    /// Parses the values of command-line flags.
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
        let value = if LISTS_OF_TABLES.contains(&key) { parse_tables(text) } else { parse_as(text, default) };
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
        match check_type(key, &value, default).and_then(|()| check_value(key, value)) {
            Ok(value) => layer.set(key, value),
            Err(message) => self.problem(key, origin, message),
        }
    }

    /// The key that was probably meant: for a typo, or for a key without its section.
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
pub(crate) fn known_keys() -> Vec<(String, Value)> {
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

/// Whether a variable is not a setting.
fn is_not_a_setting(variable: &str, text: &str) -> bool {
    !variable.starts_with(PREFIX)
        || variable.starts_with(TEST_PREFIX)
        || CLIENT_VARIABLES.contains(&variable)
        || is_service_link(variable, text)
}

/// Kubernetes sets variables in every pod for the services of its namespace. The variables of a service called `remuda` or
/// `remuda-stream` have our prefix (`REMUDA_STREAM_PORT_7778_TCP_ADDR`).
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

/// Converts text from the environment or the command line to the type of its key.
fn parse_as(text: &str, default: &Value) -> Result<Value, String> {
    // Invalid UTF-8 was replaced by this character.
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

/// Parses a list of tables, written as in a file.
fn parse_tables(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    let table = format!("list = {text}").parse::<Table>();
    let list = table.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("list"));
    list.ok_or_else(|| "expected a list as in a TOML file: [{ … }, { … }]".to_owned())
}

/// Rejects values of another type, with a message that names TOML types instead of Rust types. The value itself is not
/// shown, since it may be a secret.
fn check_type(key: &str, value: &Value, default: &Value) -> Result<(), String> {
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
    if fits { Ok(()) } else { Err(format!("expected {expected}, found {}", type_name(value))) }
}

fn type_name(value: &Value) -> String {
    match value {
        Value::Array(items) if !items.iter().all(Value::is_str) => "a list of other values".to_owned(),
        value => value.type_str().to_owned(),
    }
}

/// Checks a value by deserializing a [`Config`] with only this key. The `config` crate would convert values where it can,
/// and its errors are less precise.
fn check_value(key: &str, value: Value) -> Result<config::Value, String> {
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
