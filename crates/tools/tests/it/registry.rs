use std::sync::Arc;

use remuda_domain::{Code, tool::Effects};
use remuda_tools::{Registry, ToolOptions, native};
use serde_json::{Value, json};

fn native() -> Registry {
    Registry::native(&ToolOptions::default())
}

#[test]
fn native_tools_declare_their_effects() {
    let registry = native();
    for (tool, effects) in [
        ("Bash", Effects::Mutating),
        ("BashOutput", Effects::ReadOnly),
        ("KillBash", Effects::Idempotent),
        ("Read", Effects::ReadOnly),
        ("WebFetch", Effects::ReadOnly),
        ("WebSearch", Effects::ReadOnly),
        ("Write", Effects::Idempotent),
        ("noop", Effects::ReadOnly),
    ] {
        assert_eq!(registry.get(tool).unwrap().effects(), effects, "{tool}");
    }
    assert!(registry.is_known("noop") && !registry.is_known("bash") && registry.get("").is_none());
}

#[test]
fn tool_names_are_unique() {
    let registry = native();
    assert_eq!(registry.with(Arc::new(native::Noop)).unwrap_err().code(), Code::AlreadyExists);
    assert!(Registry::default().with(Arc::new(native::Noop)).unwrap().is_known("noop"));
}

/// Asserts that every object of the schema is closed and every property has a description.
fn check_object(place: &str, schema: &Value) {
    assert_eq!(
        (&schema["type"], &schema["additionalProperties"]),
        (&json!("object"), &json!(false)),
        "{place}"
    );
    for (name, property) in schema["properties"].as_object().unwrap() {
        let place = format!("{place}.{name}");
        assert!(property["description"].as_str().is_some_and(|text| text.len() > 4), "{place}: {property}");
        assert!(property.get("$ref").is_none() && property.get("title").is_none(), "{place}");
        if property["items"]["type"] == "object" {
            check_object(&format!("{place}[]"), &property["items"]);
        }
    }
}

#[test]
fn schemas_are_closed_and_described() {
    for tool in native().iter() {
        let schema = tool.schema();
        check_object(tool.name(), &schema);
        assert!(schema.get("$schema").is_none() && schema.get("$defs").is_none(), "{}", tool.name());
        assert!(tool.description().len() > 20, "{}", tool.name());
        assert_eq!(schema, tool.schema());
    }
}

/// Unknown arguments are rejected, and required ones are required.
#[test]
fn schemas_and_validation_agree() {
    for tool in native().iter() {
        let schema = tool.schema();
        let required = schema["required"].as_array().map_or(0, Vec::len);
        assert_eq!(tool.validate(&json!({})).is_ok(), required == 0, "{}", tool.name());
        for name in schema["properties"].as_object().unwrap().keys() {
            if let Err(error) = tool.validate(&json!({ (name): "text" })) {
                assert!(!error.message().starts_with("unknown field"), "{}: {error}", tool.name());
            }
        }
        let unknown = format!("x{}", tool.name().len() * 7919);
        let error = tool.validate(&json!({ (&unknown): 1 })).unwrap_err();
        let expected = (Code::InvalidArgument, Some(format!("arguments.{unknown}")));
        assert_eq!((error.code(), error.field().map(str::to_owned)), expected, "{}", tool.name());
        for wrong in [json!(null), json!([]), json!("text"), json!(1)] {
            assert_eq!(tool.validate(&wrong).unwrap_err().field(), Some("arguments"), "{}", tool.name());
        }
    }
}
