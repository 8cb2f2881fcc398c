//! What every format is read into.

/// A place in a file. Lines and columns start at 1; 0 means the whole file or line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// The file as a whole.
    pub(crate) const FILE: Self = Self { line: 0, column: 0 };

    pub(crate) const fn line(line: usize) -> Self {
        Self { line, column: 0 }
    }
}

/// Why a text could not be read at all.
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

/// A value and where it stood.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Position,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// In the order of the file, which matters for permissions.
    Map(Vec<Entry>),
    /// Its problem has been told; nothing more is to be said about it.
    Unusable,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub at: Position,
    pub value: Node,
}

/// A text that may mean a number, a boolean or nothing, if it was written without quotes.
#[derive(Clone)]
pub(crate) struct Scalar {
    pub text: String,
    pub plain: bool,
    /// Holds something of the environment, so it is never shown.
    pub hidden: bool,
}

impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.hidden { f.write_str("***") } else { write!(f, "{:?}", self.text) }
    }
}

/// What a scalar means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind<'a> {
    Nothing,
    Boolean(bool),
    Number(f64),
    Text(&'a str),
}

impl Scalar {
    /// As YAML 1.2 has it: `yes`, `no` and `on` are texts.
    pub(crate) fn kind(&self) -> Kind<'_> {
        if !self.plain {
            return Kind::Text(&self.text);
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Kind::Nothing,
            "true" | "True" | "TRUE" => Kind::Boolean(true),
            "false" | "False" | "FALSE" => Kind::Boolean(false),
            ".nan" | ".NaN" | ".NAN" => Kind::Number(f64::NAN),
            text => number(text).map_or(Kind::Text(text), Kind::Number),
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

/// A text that was taken out of a tree.
#[derive(Clone)]
pub(crate) struct Text {
    pub text: String,
    pub at: Position,
    pub hidden: bool,
}

impl Text {
    /// How it may be named in a message.
    pub(crate) fn shown(&self) -> String {
        if self.hidden { "a value from the environment".to_owned() } else { quoted(&self.text) }
    }
}

impl Node {
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.kind() == Kind::Nothing)
    }

    /// Whether something in it has been told as a problem already.
    pub(crate) fn is_unusable(&self) -> bool {
        match &self.value {
            Value::Unusable => true,
            Value::Scalar(_) => false,
            Value::List(items) => items.iter().any(Self::is_unusable),
            Value::Map(entries) => entries.iter().any(|entry| entry.value.is_unusable()),
        }
    }

    /// What it is, without saying what it holds.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind() {
                Kind::Nothing => "nothing",
                Kind::Boolean(_) => "a boolean",
                Kind::Number(_) => "a number",
                Kind::Text(_) => "text",
            },
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Unusable => "an unusable value",
        }
    }

    /// What it holds, cut to what is good to read. Nothing of the environment is shown.
    pub(crate) fn found(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) if scalar.hidden => "a value from the environment".to_owned(),
            Value::Scalar(scalar) => match scalar.kind() {
                Kind::Nothing => "nothing".to_owned(),
                Kind::Boolean(_) | Kind::Number(_) => cut(&scalar.text),
                Kind::Text(text) => quoted(text),
            },
            _ => self.kind_name().to_owned(),
        }
    }

    /// The same as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind() {
                Kind::Nothing => Json::Null,
                Kind::Boolean(value) => Json::Bool(value),
                Kind::Number(value) => match scalar.text.parse::<i64>() {
                    Ok(whole) => whole.into(),
                    Err(_) => serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number),
                },
                Kind::Text(text) => Json::String(text.to_owned()),
            },
            Value::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect())
            }
            Value::Unusable => Json::Null,
        }
    }
}

/// A text of someone else's within a message.
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
        Scalar { text: text.to_owned(), plain: true, hidden: false }
    }

    #[test]
    fn plain_scalars_mean_what_yaml_says() {
        for (text, kind) in [
            ("", Kind::Nothing),
            ("~", Kind::Nothing),
            ("true", Kind::Boolean(true)),
            ("yes", Kind::Text("yes")),
            ("on", Kind::Text("on")),
            ("12", Kind::Number(12.0)),
            ("-0.5", Kind::Number(-0.5)),
            ("1e3", Kind::Number(1000.0)),
            ("0x1F", Kind::Number(31.0)),
            ("1.2.3", Kind::Text("1.2.3")),
            ("-", Kind::Text("-")),
            ("e", Kind::Text("e")),
            ("infinity", Kind::Text("infinity")),
        ] {
            assert_eq!(plain(text).kind(), kind, "{text:?}");
        }
        assert_eq!(Scalar { plain: false, ..plain("12") }.kind(), Kind::Text("12"));
    }

    #[test]
    fn what_is_hidden_is_not_shown() {
        let hidden = Scalar { hidden: true, ..plain("sk-1") };
        let node = Node { at: Position::FILE, value: Value::Scalar(hidden) };
        assert!(!format!("{node:?} {}", node.found()).contains("sk-1"));
    }
}
