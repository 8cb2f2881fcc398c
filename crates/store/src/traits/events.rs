//! Reading the event stream.

use async_trait::async_trait;
use remuda_domain::{Cursor, Event, SessionId, TenantId, error::Result};

/// Reading the event stream.
#[async_trait]
pub trait Events {
    /// Events after `after`, oldest first, at least `limit` of them unless the stream ends before. Fails with
    /// `session_not_found`. The answer also says where the stream ends now.
    async fn read_events(
        &self,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        limit: usize,
    ) -> Result<EventSlice>;
}

#[derive(Clone, Debug, Default)]
pub struct EventSlice {
    pub events: Vec<Event>,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
}
