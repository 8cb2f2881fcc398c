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
use crate::reader::{Reader, Said};

pub(super) const MAX_WAIT: Duration = Duration::from_secs(60);

/// What has happened after a cursor.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventPage {
    items: Vec<Event>,
    /// `cursor` of the next request.
    next_cursor: Cursor,
    /// Of a run: it is over, and nothing more will come.
    ended: bool,
}

impl IntoResponse for EventPage {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

/// The next events that the reader wants; none when there were none in time.
pub(super) async fn page(
    reader: &mut Reader,
    filter: &Filter,
    after: Cursor,
    wait: Duration,
) -> Result<EventPage> {
    let until = Instant::now() + wait;
    let mut page = EventPage { items: Vec::new(), next_cursor: after, ended: false };
    while page.items.is_empty() && !page.ended {
        // Something that is there is given also to those who do not want to wait.
        let said = match reader.at_hand().await {
            None if !reader.is_over() => match timeout_at(until, reader.next()).await {
                Ok(said) => said,
                Err(_) => break,
            },
            said => said,
        };
        match said {
            None => page.ended = true,
            Some(Err(error)) => return Err(error),
            Some(Ok(Said::Deltas(_))) => {}
            Some(Ok(Said::Events(events))) => {
                if let Some(last) = events.last() {
                    page.next_cursor = last.cursor;
                }
                let wanted = events.iter().filter(|event| filter.lets_pass(event.body.name()));
                page.items.extend(wanted.map(|event| Event::from(v1::Event::from((***event).clone()))));
            }
        }
    }
    page.ended |= reader.is_over();
    Ok(page)
}
