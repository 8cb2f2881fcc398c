//! Long polls.

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use remuda_api::Event;
use remuda_domain::{Cursor, error::Result};
use remuda_proto::v1;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};
use utoipa::ToSchema;

use super::filter::Filter;
use crate::reader::{Batch, Reader};

pub(super) const MAX_WAIT: Duration = Duration::from_secs(60);

/// Events after a cursor.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventPage {
    items: Vec<Event>,
    /// `cursor` of the next request.
    next_cursor: Cursor,
    /// For a run: it has ended, and no more events follow.
    ended: bool,
}

impl IntoResponse for EventPage {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

/// The next events that match the filter; none if there were none in time.
pub(super) async fn page(
    reader: &mut Reader,
    filter: &Filter,
    after: Cursor,
    wait: Duration,
) -> Result<EventPage> {
    let until = Instant::now() + wait;
    let mut page = EventPage { items: Vec::new(), next_cursor: after, ended: false };
    while page.items.is_empty() && !page.ended {
        // Events that are available are returned even without a wait.
        let batch = match reader.next_available().await {
            None if !reader.is_over() => match timeout_at(until, reader.next()).await {
                Ok(batch) => batch,
                Err(_) => break,
            },
            batch => batch,
        };
        match batch {
            None => page.ended = true,
            Some(Err(error)) => return Err(error),
            Some(Ok(Batch::Deltas(_))) => {}
            Some(Ok(Batch::Events(events))) => {
                if let Some(last) = events.last() {
                    page.next_cursor = last.cursor;
                }
                let wanted = events.iter().filter(|event| filter.matches(event.body.name()));
                page.items.extend(wanted.map(|event| Event::from(v1::Event::from((***event).clone()))));
            }
        }
    }
    page.ended |= reader.is_over();
    Ok(page)
}
