//! The event stream of each session: reading and trimming it.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{Cursor, Event, SessionId, TenantId, WorkerId, error::Result};

/// Reads and trims event streams.
#[async_trait]
pub trait Events {
    /// Reads events after the cursor `after`, oldest first: at least `limit` of them unless the stream ends before.
    /// Also returns the current end of the stream. Trimmed events are missing: the first returned event then has a
    /// cursor greater than `after + 1`. Fails with `session_not_found`.
    async fn read_events(
        &self,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        limit: usize,
    ) -> Result<EventSlice>;
    /// Reads the current stream ends of many sessions. Sessions that do not exist are left out.
    async fn last_cursors(&self, sessions: &[(TenantId, SessionId)]) -> Result<Vec<StreamEnd>>;
    /// Deletes events older than `retention` from the beginning of each stream, up to the first event of an unfinished
    /// run. Scans `limit` sessions with ids greater than `after`, in id order, and deletes a bounded number of rows of
    /// each. Acts for the system.
    async fn trim_events(
        &self,
        retention: Duration,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<TrimPage>;
}

/// The end of a session's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
    /// The recorded owner; its lease may have expired.
    pub owner: Option<WorkerId>,
}

/// The result of trimming one page of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimPage {
    /// Sessions that lost events.
    pub sessions: u64,
    /// Deleted rows.
    pub rows: u64,
    /// The last scanned session, to continue after. `None` at the end of the scan.
    pub next: Option<SessionId>,
}

/// A part of a stream, and the stream's current end.
#[derive(Clone, Debug, Default)]
pub struct EventSlice {
    pub events: Vec<Event>,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
}
