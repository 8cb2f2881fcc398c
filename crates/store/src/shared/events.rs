//! Reading the event stream.

use async_trait::async_trait;
use remuda_domain::{Cursor, Event, SessionId, TenantId, error::Result};
use sqlx::query_scalar;

use super::{store::SqlStore, submit::session_not_found};
use crate::{
    EventSlice, Events,
    error::{db, parse},
};

#[async_trait]
impl Events for SqlStore {
    async fn read_events(
        &self,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        limit: usize,
    ) -> Result<EventSlice> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let last: Option<i64> =
            query_scalar("SELECT last_cursor FROM sessions WHERE id = $1 AND tenant_id = $2")
                .bind(session.as_uuid())
                .bind(tenant.as_uuid())
                .fetch_optional(&mut *connection)
                .await
                .map_err(db)?;
        let last_cursor = last.ok_or_else(session_not_found)?;
        if after >= last_cursor {
            return Ok(EventSlice { events: Vec::new(), last_cursor });
        }
        // A chunk holds at least one event, so `limit` chunks hold at least `limit` events.
        let chunks: Vec<String> = query_scalar(
            "SELECT chunk FROM events WHERE session_id = $1 AND last_cursor > $2 ORDER BY last_cursor LIMIT $3",
        )
        .bind(session.as_uuid())
        .bind(after)
        .bind(i64::try_from(limit.max(1)).unwrap_or(i64::MAX))
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
        let mut events = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let chunk: Vec<Event> = parse("event", chunk)?;
            events.extend(chunk.into_iter().filter(|event| event.cursor > after));
        }
        let newest = events.last().map_or(last_cursor, |event| event.cursor.max(last_cursor));
        Ok(EventSlice { events, last_cursor: newest })
    }
}
