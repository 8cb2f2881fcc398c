//! Checks that `docs/streaming.md` documents every event type correctly.

use std::collections::HashSet;

use serde_json::Value;

use super::{Delta, DeltaKind, DeltaOf, EventBody};
use crate::ids::{MessageId, RunId, ToolCallId};

const PAGE: &str = include_str!("../../../../docs/streaming.md");

/// The lines of the sections about event types.
fn lines() -> impl Iterator<Item = &'static str> {
    let section = |title: &str| {
        let (_, rest) = PAGE.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no {title}"));
        rest.split("\n## ").next().unwrap_or_default().lines()
    };
    section("Events").chain(section("Deltas and live output"))
}

/// The rows of the tables: name and data.
fn rows() -> Vec<(&'static str, &'static str)> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.trim_end_matches('|').split('|').collect();
        let [name, _, data] = cells.as_slice() else { panic!("three cells: {line}") };
        Some((name.trim().trim_end_matches('`'), *data))
    };
    lines().filter_map(row).collect()
}

fn examples() -> Vec<Value> {
    let lines = lines().filter(|line| line.starts_with("{\"type\""));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn example(name: &str) -> Value {
    examples().into_iter().find(|example| example["type"] == name).unwrap()
}

fn names() -> Vec<&'static str> {
    EventBody::NAMES.iter().copied().chain(["message.delta", "tool.output"]).collect()
}

#[test]
fn every_type_has_a_row_and_an_example() {
    let rows: Vec<&str> = rows().into_iter().map(|(name, _)| name).collect();
    assert_eq!(rows, names(), "in the order of the code");
    let examples = examples();
    let examples: Vec<&str> = examples.iter().filter_map(|example| example["type"].as_str()).collect();
    assert_eq!(examples, names());
    assert_eq!(names().iter().collect::<HashSet<_>>().len(), names().len());
}

#[test]
fn examples_are_events() {
    for example in examples().iter().filter(|example| example.get("run_id").is_none()) {
        let body: EventBody =
            serde_json::from_value(example.clone()).unwrap_or_else(|error| panic!("{error}: {example}"));
        assert_eq!(body.name(), example["type"]);
        assert_eq!(serde_json::to_value(&body).unwrap(), *example);
    }
}

#[test]
fn rows_name_every_field() {
    for (name, data) in rows() {
        let example = example(name);
        let fields = example.get("data").unwrap_or(&Value::Null).as_object().cloned().unwrap_or_default();
        assert_eq!(fields.is_empty(), data.trim().is_empty() || example.get("run_id").is_some(), "{name}");
        for field in fields.keys() {
            assert!(data.contains(&format!("`{field}`")), "{name} does not document {field}");
        }
    }
}

#[test]
fn deltas_are_documented() {
    let row = |name: &str| rows().into_iter().find(|(row, _)| *row == name).unwrap().1;
    for kind in DeltaKind::ALL {
        let (run, offset, text) = (RunId::new(), 0, String::new());
        let of = match kind {
            DeltaKind::Text | DeltaKind::Reasoning => DeltaOf::Message(MessageId::new()),
            DeltaKind::Stdout | DeltaKind::Stderr | DeltaKind::Notice => DeltaOf::Call(ToolCallId::new()),
        };
        let delta = Delta { run, of, kind, offset, text };
        let (data, example) = (delta.data(), example(delta.name()));
        let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<HashSet<_>>();
        assert_eq!(fields(&data), &fields(&example) - &HashSet::from(["type".to_owned()]));
        for field in fields(&data) {
            assert!(
                row(delta.name()).contains(&format!("`{field}`")),
                "{} does not document {field}",
                delta.name()
            );
        }
        assert!(row(delta.name()).contains(&format!("`{}`", kind.as_str())), "{kind:?}");
    }
}
