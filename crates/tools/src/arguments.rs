//! Arguments: from JSON to types, with errors that name the argument.

use remuda_domain::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

/// Reads a tool's arguments. `T` refuses unknown fields.
pub(crate) fn parse<'a, T: Deserialize<'a>>(arguments: &'a Value) -> Result<T> {
    if !arguments.is_object() {
        return Err(Error::invalid("arguments", "expected a JSON object"));
    }
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let message = error.inner().to_string();
        // What is missing has no place in the arguments to point to; serde names it only in the text.
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        match (missing, error.path().to_string().as_str()) {
            (Some(name), _) => Error::invalid(field(name), "expected a value"),
            (None, "." | "?") => Error::invalid("arguments", message),
            (None, path) => Error::invalid(field(path), message),
        }
    })
}

/// The full name of an argument, as errors use it.
pub(crate) fn field(name: &str) -> String {
    // An unknown argument's name is the caller's text: keep it short and printable.
    let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
    format!("arguments.{name}")
}

/// Names the argument in an error of the sandbox, which knows it by another name.
pub(crate) fn rename<'a>(from: &'a str, to: &'a str) -> impl Fn(Error) -> Error + 'a {
    move |error| if error.field() == Some(from) { error.at(field(to)) } else { error }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Some2 {
        #[expect(dead_code, reason = "only parsed")]
        file_path: String,
        #[expect(dead_code, reason = "only parsed")]
        limit: Option<u64>,
    }

    fn refusal(arguments: &Value) -> (String, String) {
        let error = parse::<Some2>(arguments).unwrap_err();
        (error.field().unwrap().to_owned(), error.message().to_owned())
    }

    #[test]
    fn every_error_names_the_argument() {
        assert_eq!(refusal(&json!({})), ("arguments.file_path".into(), "expected a value".into()));
        assert_eq!(refusal(&json!({ "file_path": 3 })).0, "arguments.file_path");
        assert_eq!(refusal(&json!({ "file_path": "f", "limit": -1 })).0, "arguments.limit");
        assert_eq!(refusal(&json!({ "file_path": "f", "limit": 1e30 })).0, "arguments.limit");
        let (field, message) = refusal(&json!({ "file_path": "f", "path\n": 1 }));
        assert_eq!(field, "arguments.path\\n");
        assert!(message.starts_with("unknown field"), "{message}");
        assert_eq!(refusal(&json!([])).0, "arguments");
        assert_eq!(refusal(&json!(null)).0, "arguments");
        assert!(parse::<Some2>(&json!({ "file_path": "f", "limit": null })).is_ok());
    }
}
