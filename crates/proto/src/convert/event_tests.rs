//! Tests that typed events carry the same data as their JSON. The streaming documentation has an example of each type.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, ReflectMessage as _, Value as Field};
use remuda_domain::{EventId, MessageId, RunId, SessionId, ToolCallId, event::DeltaKind};

use super::*;
use crate::FILE_DESCRIPTOR_SET;

fn examples() -> Vec<EventBody> {
    let page = include_str!("../../../../docs/streaming.md");
    let (_, section) = page.split_once("\n## Events\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("{\"type\""));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn event(body: EventBody) -> Event {
    let (id, session, run) = (EventId::new(), SessionId::new(), Some(RunId::new()));
    Event { id, cursor: 7, session, run, at: Timestamp::UNIX_EPOCH, body }
}

/// The set field of the body, and its message.
fn body_of(event: &v1::Event) -> Option<(FieldDescriptor, DynamicMessage)> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name("remuda.v1.Event").unwrap();
    let event = DynamicMessage::decode(descriptor.clone(), event.encode_to_vec().as_slice()).unwrap();
    let bodies = descriptor.oneofs().find(|oneof| oneof.name() == "body").unwrap();
    let field = bodies.fields().find(|field| event.has_field(field))?;
    let body = event.get_field(&field).as_message().unwrap().clone();
    Some((field, body))
}

/// All values in a JSON document.
fn json_values(json: &Value, into: &mut BTreeSet<String>) {
    match json {
        Value::Null => {}
        Value::Array(items) => items.iter().for_each(|item| json_values(item, into)),
        Value::Object(fields) => fields.values().for_each(|field| json_values(field, into)),
        Value::String(text) => {
            into.insert(text.clone());
        }
        Value::Bool(_) | Value::Number(_) => {
            into.insert(json.to_string());
        }
    }
}

/// All values in a message. Texts that are JSON are parsed.
fn message_values(field: &Field, into: &mut BTreeSet<String>) {
    match field {
        Field::Message(message) if message.descriptor().full_name() == "google.protobuf.Timestamp" => {
            let at = message.transcode_to::<prost_types::Timestamp>().unwrap();
            into.insert(
                serde_json::to_value(super::super::from_timestamp(&at)).unwrap().as_str().unwrap().into(),
            );
        }
        Field::Message(message) => {
            for field in message.descriptor().fields() {
                if message.has_field(&field) {
                    message_values(&message.get_field(&field), into);
                } else {
                    // A completed call has no failure.
                    assert_eq!(field.full_name(), "remuda.v1.ToolOutcome.failure", "no example has it");
                }
            }
        }
        Field::Map(fields) => fields.values().for_each(|field| message_values(field, into)),
        Field::List(items) => items.iter().for_each(|item| message_values(item, into)),
        Field::String(text) => {
            match serde_json::from_str(text) {
                Ok(json @ (Value::Object(_) | Value::Array(_))) => json_values(&json, into),
                _ => drop(into.insert(text.clone())),
            };
        }
        Field::EnumNumber(number) => {
            let state = super::super::run_state("state", *number).unwrap();
            into.insert(state.as_str().to_owned());
        }
        Field::Bool(value) => drop(into.insert(value.to_string())),
        Field::I32(number) => drop(into.insert(number.to_string())),
        Field::I64(number) => drop(into.insert(number.to_string())),
        Field::U32(number) => drop(into.insert(number.to_string())),
        Field::U64(number) => drop(into.insert(number.to_string())),
        other => panic!("not expected in an event: {other:?}"),
    }
}

#[test]
fn every_event_type_has_a_body_with_the_data_of_its_json() {
    let examples = examples();
    let names: Vec<&str> = examples.iter().map(EventBody::name).collect();
    assert_eq!(names, EventBody::NAMES);
    for example in examples {
        let (name, plain) = (example.name(), v1::Event::from(event(example.clone())));
        assert_eq!((plain.r#type.as_str(), &plain.body), (name, &None));
        let typed = typed_event(event(example));
        assert_eq!((typed.r#type.as_str(), typed.data.as_str(), typed.cursor), (name, "", 7));
        let (field, body) = body_of(&typed).unwrap();
        assert_eq!(field.name(), name.replace('.', "_"));

        let data: Value = serde_json::from_str(&plain.data).unwrap_or_default();
        for key in data.as_object().into_iter().flatten().map(|(key, _)| key) {
            assert!(body.has_field_by_name(key), "{name} lacks {key}");
        }
        let (mut expected, mut got) = (BTreeSet::new(), BTreeSet::new());
        json_values(&data, &mut expected);
        message_values(&Field::Message(body), &mut got);
        let lost: Vec<_> = expected.difference(&got).collect();
        assert!(lost.is_empty(), "{name} loses {lost:?}");
    }
}

#[test]
fn unknown_event_type_has_no_body() {
    // A newer server sends an unknown field of the body.
    let mut bytes =
        v1::Event { cursor: 3, r#type: "run.admired".into(), ..Default::default() }.encode_to_vec();
    prost::encoding::bytes::encode(2000, &b"\x0a\x02hi".to_vec(), &mut bytes);
    let event = v1::Event::decode(bytes.as_slice()).unwrap();
    assert_eq!((event.cursor, event.r#type.as_str(), event.body), (3, "run.admired", None));
}

#[test]
fn deltas_name_a_message_or_a_call() {
    let (run, message, call) = (RunId::new(), MessageId::new(), ToolCallId::new());
    let piece = |of, kind| v1::Delta::from(Delta { run, of, kind, offset: 3, text: "lo".into() });
    let reasoning = piece(DeltaOf::Message(message), DeltaKind::Reasoning);
    assert_eq!((reasoning.message_id, reasoning.call_id.as_str()), (message.to_string(), ""));
    assert_eq!((reasoning.kind.as_str(), reasoning.offset, reasoning.text.as_str()), ("reasoning", 3, "lo"));
    let stderr = piece(DeltaOf::Call(call), DeltaKind::Stderr);
    assert_eq!((stderr.message_id.as_str(), stderr.call_id), ("", call.to_string()));
    assert_eq!(stderr.kind, "stderr");
}
