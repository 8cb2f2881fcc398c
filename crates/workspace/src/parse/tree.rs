//! The tree that all formats are parsed into.

/// A position in a file. Lines and columns start at 1; 0 means the whole file or line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// The whole file.
    pub(crate) const FILE: Self = Self { line: 0, column: 0 };

    pub(crate) const fn line(line: usize) -> Self {
        Self { line, column: 0 }
    }
}

/// Why a file could not be read or parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub at: Position,
    pub message: String,
}

impl Fault {
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// A value with its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Position,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// In file order, which matters for permissions.
    Map(Vec<Entry>),
    /// An invalid value whose problem has been reported already.
    Unusable,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub at: Position,
    pub value: Node,
}

/// A scalar. Without quotes it may be a number, a boolean or null.
#[derive(Clone)]
pub(crate) struct Scalar {
    pub text: String,
    pub plain: bool,
    /// Contains an environment variable's value, so it is never shown.
    pub from_env: bool,
}

impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.from_env { f.write_str("***") } else { write!(f, "{:?}", self.text) }
    }
}

/// The type and value of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScalarKind<'a> {
    Null,
    Boolean(bool),
    Number(f64),
    Text(&'a str),
}

impl Scalar {
    /// As in YAML 1.2, where `yes`, `no` and `on` are text.
    pub(crate) fn kind(&self) -> ScalarKind<'_> {
        if !self.plain {
            return ScalarKind::Text(&self.text);
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
            "true" | "True" | "TRUE" => ScalarKind::Boolean(true),
            "false" | "False" | "FALSE" => ScalarKind::Boolean(false),
            ".nan" | ".NaN" | ".NAN" => ScalarKind::Number(f64::NAN),
            text => number(text).map_or(ScalarKind::Text(text), ScalarKind::Number),
        }
    }
}

fn number(text: &str) -> Option<f64> {
    let unsigned = text.trim_start_matches(['+', '-']);
    if unsigned.eq_ignore_ascii_case(".inf") {
        return Some(f64::INFINITY);
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return u32::from_str_radix(digits, radix).ok().map(f64::from);
        }
    }
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if text.chars().all(numeric) && text.contains(|c: char| c.is_ascii_digit()) {
        return text.parse().ok();
    }
    None
}

/// A text with its position.
#[derive(Clone)]
pub(crate) struct LocatedText {
    pub text: String,
    pub at: Position,
    pub from_env: bool,
}

impl LocatedText {
    /// The text for messages; values from the environment are not shown.
    pub(crate) fn display(&self) -> String {
        if self.from_env { "a value from the environment".to_owned() } else { quoted(&self.text) }
    }
}

impl Node {
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.kind() == ScalarKind::Null)
    }

    /// Whether it contains an invalid value whose problem has been reported already.
    pub(crate) fn is_unusable(&self) -> bool {
        match &self.value {
            Value::Unusable => true,
            Value::Scalar(_) => false,
            Value::List(items) => items.iter().any(Self::is_unusable),
            Value::Map(entries) => entries.iter().any(|entry| entry.value.is_unusable()),
        }
    }

    /// The type for messages, without the value.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind() {
                ScalarKind::Null => "nothing",
                ScalarKind::Boolean(_) => "a boolean",
                ScalarKind::Number(_) => "a number",
                ScalarKind::Text(_) => "text",
            },
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Unusable => "an unusable value",
        }
    }

    /// The value for messages, shortened. Values from the environment are not shown.
    pub(crate) fn display_value(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) if scalar.from_env => "a value from the environment".to_owned(),
            Value::Scalar(scalar) => match scalar.kind() {
                ScalarKind::Null => "nothing".to_owned(),
                ScalarKind::Boolean(_) | ScalarKind::Number(_) => cut(&scalar.text),
                ScalarKind::Text(text) => quoted(text),
            },
            _ => self.kind_name().to_owned(),
        }
    }

    /// Converts the tree to JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind() {
                ScalarKind::Null => Json::Null,
                ScalarKind::Boolean(value) => Json::Bool(value),
                ScalarKind::Number(value) => match scalar.text.parse::<i64>() {
                    Ok(whole) => whole.into(),
                    Err(_) => serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number),
                },
                ScalarKind::Text(text) => Json::String(text.to_owned()),
            },
            Value::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect())
            }
            Value::Unusable => Json::Null,
        }
    }
}

/// Quotes and shortens a text for messages.
pub(crate) fn quoted(text: &str) -> String {
    format!("`{}`", cut(text))
}

fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Scalar {
        Scalar { text: text.to_owned(), plain: true, from_env: false }
    }

    #[test]
    fn plain_scalars_are_typed_as_in_yaml_1_2() {
        for (text, kind) in [
            ("", ScalarKind::Null),
            ("~", ScalarKind::Null),
            ("true", ScalarKind::Boolean(true)),
            ("yes", ScalarKind::Text("yes")),
            ("on", ScalarKind::Text("on")),
            ("12", ScalarKind::Number(12.0)),
            ("-0.5", ScalarKind::Number(-0.5)),
            ("1e3", ScalarKind::Number(1000.0)),
            ("0x1F", ScalarKind::Number(31.0)),
            ("1.2.3", ScalarKind::Text("1.2.3")),
            ("-", ScalarKind::Text("-")),
            ("e", ScalarKind::Text("e")),
            ("infinity", ScalarKind::Text("infinity")),
        ] {
            assert_eq!(plain(text).kind(), kind, "{text:?}");
        }
        assert_eq!(Scalar { plain: false, ..plain("12") }.kind(), ScalarKind::Text("12"));
    }

    #[test]
    fn value_from_the_environment_is_not_shown() {
        let hidden = Scalar { from_env: true, ..plain("sk-1") };
        let node = Node { at: Position::FILE, value: Value::Scalar(hidden) };
        assert!(!format!("{node:?} {}", node.display_value()).contains("sk-1"));
    }
}
