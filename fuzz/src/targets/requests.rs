//! Requests of clients: bodies of gRPC and HTTP, and their conversion.

use prost::Message;
use remuda_api as api;
use remuda_domain::limits;
use remuda_proto::{convert, v1};
use serde::{Serialize, de::DeserializeOwned};

use super::{Target, kind};

pub(super) const PROTO: Target = Target {
    name: "proto-requests",
    run: proto,
    dictionary: &[
        "\u{12}",
        "\n",
        "\u{1a}",
        "noop",
        "Bash",
        "{\"command\":\"x\"}",
        "\u{8}\u{1}",
        "default",
        "full_auto",
        "ask",
    ],
    inputs: 4_000,
};
pub(super) const HTTP: Target = Target {
    name: "http-bodies",
    run: http,
    dictionary: &[
        "{",
        "}",
        "[",
        "]",
        "\"tools\":",
        "\"calls\":",
        "\"message\":",
        "\"text\":",
        "\"timeout_ms\":",
        "\"labels\":{",
        "\"permissions\":",
        "\"rules\":",
        "\"budget\":",
        "\"execution\":",
        "\"arguments\":",
        "null",
        "-1",
        "1e400",
        "18446744073709551616",
        "\"\\ud800\"",
    ],
    inputs: 4_000,
};

/// Conversion accepts nothing that breaks a limit, and never panics.
fn proto(bytes: &[u8]) -> u64 {
    let mut seen = Vec::new();
    if let Ok(request) = v1::SubmitRunRequest::decode(bytes) {
        let again = v1::SubmitRunRequest::decode(request.encode_to_vec().as_slice());
        assert_eq!(again.as_ref(), Ok(&request), "a request changes when written");
        seen.push(format!("{:?}", convert_run(request)));
    }
    if let Ok(permissions) = v1::Permissions::decode(bytes) {
        let converted = convert::session_permissions(permissions);
        if let Ok(permissions) = &converted {
            assert!(permissions.rules.iter().all(|rule| !rule.locked), "a caller locked a rule");
            assert!(limits::check_permissions(permissions).is_ok(), "accepted permissions break a limit");
        }
        seen.push(format!("{:?}", converted.err().map(|error| error.code())));
    }
    if let Ok(message) = v1::MessageInput::decode(bytes) {
        let size = convert::message_bytes(&message);
        assert!(size <= 4 * bytes.len() + 64, "a small message counts as large");
        seen.push(format!("{:?}", convert::message_input(message).err().map(|error| error.code())));
    }
    if let Ok(limit) = v1::Limit::decode(bytes) {
        seen.push(format!("{:?}", convert::limit("budget", limit).err().map(|error| error.code())));
    }
    if let Ok(execution) = v1::Execution::decode(bytes) {
        seen.push(format!(
            "{:?}",
            convert::execution_choice(Some(execution)).err().map(|error| error.code())
        ));
    }
    kind(seen)
}

fn convert_run(request: v1::SubmitRunRequest) -> Option<remuda_domain::Code> {
    if let Some(timeout) = request.timeout
        && let Err(error) = convert::from_duration("timeout", timeout)
    {
        return Some(error.code());
    }
    match request.input? {
        v1::submit_run_request::Input::Tools(tools) => {
            convert::tools_input(tools).err().map(|error| error.code())
        }
        v1::submit_run_request::Input::Message(message) => {
            convert::message_input(message).err().map(|error| error.code())
        }
    }
}

fn http(bytes: &[u8]) -> u64 {
    let read = [
        body::<api::NewRun>(bytes),
        body::<api::NewMessage>(bytes),
        body::<api::NewSession>(bytes),
        body::<api::SessionChange>(bytes),
        body::<api::DecisionRequest>(bytes),
    ];
    kind(read)
}

/// What is read is read again as it is written. Errors are the JSON library's, without the position.
fn body<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> String {
    match serde_json::from_slice::<T>(bytes) {
        Ok(body) => {
            let written = serde_json::to_string(&body).unwrap_or_default();
            let again =
                serde_json::from_str::<T>(&written).ok().and_then(|body| serde_json::to_string(&body).ok());
            assert_eq!(again.as_ref(), Some(&written), "a body changes when written");
            written.chars().filter(|next| !next.is_alphanumeric()).collect()
        }
        Err(error) => error.to_string().chars().take(40).collect(),
    }
}
