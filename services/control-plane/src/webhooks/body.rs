//! The body of a delivery: an event as JSON, in the form of the HTTP event stream.

use remuda_domain::{Error, Event, EventId, RunId, SessionId, Timestamp, error::Result};
use remuda_proto::v1;

fn json(event: &remuda_api::Event) -> Result<String> {
    serde_json::to_string(event)
        .map_err(|error| Error::internal("cannot serialize an event").with_source(error))
}

/// The body for an event.
pub(super) fn of(event: &Event) -> Result<String> {
    json(&v1::Event::from(event.clone()).into())
}

/// The body of a test delivery, which is not an event of the session.
pub(crate) fn test(session: SessionId, run: Option<RunId>, id: EventId, at: Timestamp) -> Result<String> {
    let event = v1::Event {
        id: id.to_string(),
        session_id: session.to_string(),
        run_id: run.map(|run| run.to_string()).unwrap_or_default(),
        r#type: "webhook.test".to_owned(),
        at: Some(remuda_proto::convert::timestamp(at)),
        ..v1::Event::default()
    };
    json(&event.into())
}

#[cfg(test)]
mod tests {
    use remuda_domain::{EventBody, Labels};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn body_is_a_flat_event_without_empty_fields() {
        let (session, run) = (SessionId::new(), RunId::new());
        let event = |run, body| Event {
            id: EventId::new(),
            cursor: 7,
            session,
            run,
            at: Timestamp::UNIX_EPOCH,
            body,
        };
        let labels = Labels::parse(["team=core"]).unwrap();
        let body = EventBody::RunQueued { seq: 2, kind: "tools".into(), pending: 1, labels };
        let queued = event(Some(run), body);
        let body: Value = serde_json::from_str(&of(&queued).unwrap()).unwrap();
        let expected = json!({
            "id": queued.id.to_string(), "type": "run.queued", "cursor": 7, "session_id": session.to_string(),
            "run_id": run.to_string(), "at": "1970-01-01T00:00:00.000000Z",
            "data": { "seq": 2, "kind": "tools", "pending": 1, "labels": { "team": "core" } },
        });
        assert_eq!(body, expected);
        let body: Value = serde_json::from_str(&of(&event(None, EventBody::SessionClosed)).unwrap()).unwrap();
        assert_eq!((body.get("run_id"), body.get("data")), (None, None));
    }
}
