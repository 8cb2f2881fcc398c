//! Parsing of tool arguments, and their JSON Schema.
//!
//! A tool's argument struct is the single source of both: `#[serde(deny_unknown_fields)]` closes the schema,
//! doc comments become the descriptions, and `#[schemars(range(…))]` and similar attributes state what the
//! struct's own check enforces.

use remuda_domain::error::{Error, Result};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::Deserialize;
use serde_json::Value;

/// Parses a tool's arguments. Errors name the argument. `T` must deny unknown fields.
pub(crate) fn parse<'a, T: Deserialize<'a>>(arguments: &'a Value) -> Result<T> {
    if !arguments.is_object() {
        return Err(Error::invalid("arguments", "expected a JSON object"));
    }
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let message = error.inner().to_string();
        // A missing field has no path; serde names it only in the message.
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        match (missing, error.path().to_string().as_str()) {
            (Some(name), _) => Error::invalid(field(name), "expected a value"),
            (None, "." | "?") => Error::invalid("arguments", message),
            (None, path) => Error::invalid(field(path), message),
        }
    })
}

/// The JSON Schema of `T`. Tools cache it in a `LazyLock`.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    // The tool's own description covers the arguments as a whole.
    if let Some(object) = schema.as_object_mut() {
        object.remove("description");
        object.entry("properties").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    simplify(&mut schema);
    schema
}

/// Removes details that only matter to Rust: type names and integer widths, and that an optional argument may
/// also be `null`, which is accepted but not worth a model's attention.
fn simplify(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    object.remove("title");
    object.remove("format");
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(only)] = choices.as_mut_slice() {
            let only = std::mem::take(only);
            object.remove("anyOf");
            for (key, value) in only {
                object.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(choices)) = object.get_mut(key) {
            choices.iter_mut().for_each(simplify);
        }
    }
    if let Some(items) = object.get_mut("items") {
        simplify(items);
    }
}

/// The full name of an argument, as errors use it.
pub(crate) fn field(name: &str) -> String {
    // The name of an unknown argument is caller input: keep it short and printable.
    let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
    format!("arguments.{name}")
}

/// Replaces the sandbox's field name in an error by the name of the argument.
pub(crate) fn rename<'a>(from: &'a str, to: &'a str) -> impl Fn(Error) -> Error + 'a {
    move |error| if error.field() == Some(from) { error.at(field(to)) } else { error }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Removed from the schema.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Some2 {
        /// Where it is.
        #[schemars(length(min = 1))]
        file_path: String,
        /// How much.
        #[schemars(range(min = 1, max = 9))]
        limit: Option<u64>,
        /// Which kind.
        kind: Option<Kind>,
        /// Things.
        #[serde(default)]
        things: Vec<Thing>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Small,
        Large,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Thing {
        /// Its name.
        name: String,
    }

    #[test]
    fn schema_is_closed_and_simplified() {
        let expected = json!({
            "type": "object",
            "properties": {
                "file_path": { "type": "string", "minLength": 1, "description": "Where it is." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 9, "description": "How much." },
                "kind": { "type": "string", "enum": ["small", "large"], "description": "Which kind." },
                "things": {
                    "type": "array", "description": "Things.",
                    "items": {
                        "type": "object",
                        "properties": { "name": { "type": "string", "description": "Its name." } },
                        "required": ["name"],
                        "additionalProperties": false
                    }
                }
            },
            "required": ["file_path"],
            "additionalProperties": false
        });
        assert_eq!(schema_of::<Some2>(), expected);
    }

    fn refusal(arguments: &Value) -> (String, String) {
        let error = parse::<Some2>(arguments).unwrap_err();
        (error.field().unwrap().to_owned(), error.message().to_owned())
    }

    #[test]
    fn parse_errors_name_the_argument() {
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
