//! What agents say and are asked, as JSON.

use remuda_proto::{convert::from_timestamp, v1};
use serde_json::{Value, json};

use super::{embedded, failure, object, time};

/// A message to an agent. Pictures are told of, not shown: they are long.
pub(super) fn input(input: &v1::MessageInput) -> Value {
    let image = |image: &v1::Image| {
        object([
            ("media_type", image.media_type.as_str().into()),
            ("bytes", if image.data.is_empty() { Value::Null } else { image.data.len().into() }),
            ("url", image.url.as_str().into()),
        ])
    };
    let images = input.images.iter().map(image).collect::<Vec<_>>();
    object([
        ("id", input.id.as_str().into()),
        ("text", input.text.as_str().into()),
        ("images", if images.is_empty() { Value::Null } else { images.into() }),
        ("agent", input.agent.as_str().into()),
    ])
}

pub(in crate::client) fn message(message: &v1::Message) -> Value {
    object([
        ("id", message.id.as_str().into()),
        ("session_id", message.session_id.as_str().into()),
        ("run_id", message.run_id.as_str().into()),
        ("role", message.role.as_str().into()),
        ("agent", message.agent.as_str().into()),
        ("parts", embedded(&message.parts)),
        ("created_at", time(message.created_at.as_ref().and_then(from_timestamp))),
    ])
}

/// A piece of a message among events, which have another `type`.
pub(in crate::client) fn delta(delta: &v1::Delta) -> Value {
    json!({
        "type": "delta",
        "run_id": delta.run_id,
        "message_id": delta.message_id,
        "kind": delta.kind,
        "offset": delta.offset,
        "text": delta.text,
    })
}

pub(in crate::client) fn workspace(workspace: &v1::Workspace) -> Value {
    object([
        ("id", workspace.id.as_str().into()),
        ("name", workspace.name.as_str().into()),
        ("root", workspace.root.as_str().into()),
        ("created_at", time(workspace.created_at.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn model_call(call: &v1::ModelCall) -> Value {
    object([
        ("message_id", call.message_id.as_str().into()),
        ("agent", call.agent.as_str().into()),
        ("model", call.model.as_str().into()),
        ("model_name", call.model_name.as_str().into()),
        ("parameters", embedded(&call.parameters)),
        ("definitions_hash", call.definitions_hash.as_str().into()),
        ("system_hash", call.system_hash.as_str().into()),
        ("tools_hash", call.tools_hash.as_str().into()),
        ("messages", embedded(&call.messages)),
        ("status", call.status.as_str().into()),
        ("parts", embedded(&call.parts)),
        ("finish", call.finish.as_str().into()),
        ("usage", call.usage.as_ref().map_or(Value::Null, usage)),
        ("failure", call.failure.as_ref().map_or(Value::Null, failure)),
        ("duration_ms", if call.status.is_empty() { Value::Null } else { call.duration_ms.into() }),
        ("cost_micros", call.cost_micros.map_or(Value::Null, Value::from)),
        ("purpose", call.purpose.as_str().into()),
        ("attempts", if call.status.is_empty() { Value::Null } else { call.attempts.into() }),
    ])
}

fn usage(usage: &v1::Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_not_shown() {
        let image = v1::Image { media_type: "image/png".into(), data: vec![0; 9], url: String::new() };
        let said = v1::MessageInput { text: "look".into(), images: vec![image], ..Default::default() };
        assert_eq!(
            input(&said),
            json!({ "text": "look", "images": [{ "media_type": "image/png", "bytes": 9 }] })
        );
    }

    #[test]
    fn a_model_call_embeds_what_is_json() {
        let call = v1::ModelCall {
            model: "platform/m".into(),
            parameters: r#"{"temperature":0.5}"#.into(),
            parts: r#"[{"type":"text","text":"hi"}]"#.into(),
            status: "completed".into(),
            usage: Some(v1::Usage { input_tokens: 3, ..Default::default() }),
            ..Default::default()
        };
        let json = model_call(&call);
        assert_eq!(json["parameters"]["temperature"], 0.5);
        assert_eq!(json["parts"][0]["text"], "hi");
        assert_eq!(json["usage"]["input_tokens"], 3);
        assert!(model_call(&v1::ModelCall::default()).get("duration_ms").is_none());
    }
}
