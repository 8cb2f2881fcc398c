//! Events of a session.

use remuda_proto::v1;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::json_value::{embedded, text, time};

/// One entry of a session's event stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Event {
    /// `evt_…`
    pub id: String,
    /// 1, 2, 3 … within the session, without gaps.
    pub cursor: i64,
    pub session_id: String,
    /// Omitted for events of the session itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// `run.queued`, `run.started`, `tool.completed`, … Ignore unknown types.
    pub r#type: String,
    /// Data of the event, by type. Omitted if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
}

impl From<v1::Event> for Event {
    fn from(event: v1::Event) -> Self {
        Self {
            id: event.id,
            cursor: event.cursor,
            session_id: event.session_id,
            run_id: text(event.run_id),
            r#type: event.r#type,
            data: embedded(&event.data),
            at: time(event.at),
        }
    }
}
