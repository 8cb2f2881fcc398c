//! Streams of model providers.

use remuda_models::fuzzing;

use super::{Target, kind};

pub(super) const SSE: Target = Target {
    name: "sse",
    run: sse,
    dictionary: &["data:", "data: ", "event: ", "id:", "retry:", "\n\n", "\r\n\r\n", "\r", ": ", "\u{feff}"],
    inputs: 5_000,
};
pub(super) const OPENAI: Target = Target {
    name: "openai-stream",
    run: |bytes| stream(bytes, fuzzing::openai),
    dictionary: &[
        "data: ",
        "\n\n",
        "[DONE]",
        "{\"choices\":[{\"index\":0,\"delta\":{",
        "\"content\":\"",
        "\"tool_calls\":[{\"index\":",
        "\"function\":{\"name\":\"",
        "\"arguments\":\"",
        "\"finish_reason\":\"stop\"",
        "\"usage\":{",
        "\"error\":{",
        "\"prompt_tokens\":",
        "-1",
        "1e99",
        "null",
        "}]}",
        "18446744073709551615",
    ],
    inputs: 3_000,
};
pub(super) const ANTHROPIC: Target = Target {
    name: "anthropic-stream",
    run: |bytes| stream(bytes, fuzzing::anthropic),
    dictionary: &[
        "event: ",
        "data: ",
        "\n\n",
        "{\"type\":\"message_start\",\"message\":{",
        "{\"type\":\"content_block_start\",\"index\":",
        "\"content_block\":{\"type\":\"tool_use\"",
        "{\"type\":\"content_block_delta\",\"index\":",
        "\"delta\":{\"type\":\"input_json_delta\"",
        "\"partial_json\":\"",
        "{\"type\":\"message_stop\"}",
        "{\"type\":\"error\"",
        "\"usage\":{\"input_tokens\":",
        "-1",
        "1e99",
        "18446744073709551615",
        "null",
    ],
    inputs: 3_000,
};

/// Events do not depend on where the stream is cut, and none is longer than allowed.
fn sse(bytes: &[u8]) -> u64 {
    const MAX: usize = 200;
    let whole = fuzzing::events(&[bytes], MAX);
    let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(fuzzing::events(&pieces, MAX).0, whole.0, "events depend on where the stream is cut");
    let (events, too_long) = whole;
    // Invalid bytes are replaced by three.
    assert!(events.iter().all(|(_, data)| data.len() <= 3 * MAX), "an event is longer than allowed");
    kind((
        events.iter().map(|(name, data)| (!name.is_empty(), data.len().min(4))).collect::<Vec<_>>(),
        too_long,
    ))
}

/// A response is complete, or an error.
fn stream(bytes: &[u8], read: fn(&[u8]) -> Result<String, String>) -> u64 {
    kind(read(bytes))
}
