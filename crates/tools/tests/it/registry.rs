use std::sync::Arc;

use remuda_domain::{Code, tool::Effects};
use remuda_tools::{Registry, native};
use serde_json::json;

#[test]
fn knows_the_native_tools() {
    let registry = Registry::native();
    assert_eq!(registry.names().collect::<Vec<_>>(), ["Bash", "Read", "Write", "noop"]);
    assert!(registry.is_known("noop") && !registry.is_known("bash") && registry.get("").is_none());
    let effects: Vec<_> = registry.iter().map(|tool| tool.effects()).collect();
    assert_eq!(effects, [Effects::Mutating, Effects::ReadOnly, Effects::Idempotent, Effects::ReadOnly]);
}

#[test]
fn names_are_unique() {
    let registry = Registry::native();
    assert_eq!(registry.with(Arc::new(native::Noop)).unwrap_err().code(), Code::AlreadyExists);
    assert!(Registry::default().with(Arc::new(native::Noop)).unwrap().is_known("noop"));
}

/// Strict, and what is said to be required is.
#[test]
fn schemas_and_validation_agree() {
    for tool in Registry::native().iter() {
        let schema = tool.schema();
        assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
        assert!(!tool.description().is_empty());
        let required = schema["required"].as_array().map_or(0, Vec::len);
        assert_eq!(tool.validate(&json!({})).is_ok(), required == 0, "{}", tool.name());
        for name in schema["properties"].as_object().unwrap().keys() {
            if let Err(error) = tool.validate(&json!({ (name): "text" })) {
                assert!(!error.message().starts_with("unknown field"), "{}: {error}", tool.name());
            }
        }
    }
}
