//! Entry points for fuzzing: the parsers of streams, without a server.

use serde_json::Value;

use crate::{
    AttemptError, Response, anthropic, openai,
    provider_error::{ErrorMapper, Secrets},
    sse::{Decoder, Event},
};

/// The longest event of a stream.
const MAX_EVENT_BYTES: usize = 64 * 1024;

/// The events of a stream that arrives in these pieces: name and data. And whether one was too long.
#[must_use]
pub fn events(pieces: &[&[u8]], max_event_bytes: usize) -> (Vec<(String, String)>, bool) {
    let (events, too_long) = decode(pieces, max_event_bytes);
    (events.into_iter().map(|event| (event.name, event.data)).collect(), too_long)
}

fn decode(pieces: &[&[u8]], max_event_bytes: usize) -> (Vec<Event>, bool) {
    let mut decoder = Decoder::new(max_event_bytes);
    let pushed = pieces.iter().try_for_each(|piece| decoder.push(piece)).and_then(|()| decoder.finish());
    (std::iter::from_fn(|| decoder.next()).collect(), pushed.is_err())
}

/// Reads a stream as one of the Chat Completions API.
pub fn openai(stream: &[u8]) -> Result<String, String> {
    let events = decode(&[stream], MAX_EVENT_BYTES).0;
    let values =
        events.iter().filter_map(|event| Some((event, serde_json::from_str::<Value>(&event.data).ok()?)));
    outcome(openai::read_events(&errors(), values.map(|(_, value)| value)))
}

/// Reads a stream as one of the Messages API.
pub fn anthropic(stream: &[u8]) -> Result<String, String> {
    let events = decode(&[stream], MAX_EVENT_BYTES).0;
    let values = events
        .iter()
        .filter_map(|event| Some((event.name.as_str(), serde_json::from_str::<Value>(&event.data).ok()?)));
    outcome(anthropic::read_events(&errors(), values))
}

fn errors() -> ErrorMapper {
    ErrorMapper { host: "host".to_owned(), secrets: Secrets::default() }
}

fn outcome(read: Result<Response, AttemptError>) -> Result<String, String> {
    let shape = |response: Response| {
        let arguments =
            response.tool_requests.iter().map(|request| request.arguments.is_ok()).collect::<Vec<_>>();
        format!(
            "{:?} {} {} {arguments:?}",
            response.finish,
            response.text.is_empty(),
            response.reasoning.len()
        )
    };
    read.map(shape).map_err(|error| error.error.to_string().chars().take(60).collect())
}
