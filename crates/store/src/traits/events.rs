//! Reading the event stream.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{Cursor, Event, SessionId, TenantId, WorkerId, error::Result};

/// Reading the event stream.
#[async_trait]
pub trait Events {
    /// Events after `after`, oldest first, at least `limit` of them unless the stream ends before. Fails with
    /// `session_not_found`. The answer also says where the stream ends now. What was trimmed is left out: the first event that is
    /// kept then has a cursor of more than `after + 1`.
    async fn read_events(
        &self,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        limit: usize,
    ) -> Result<EventSlice>;
    /// Where the streams of many sessions end now. Those that do not exist are left out.
    async fn last_cursors(&self, sessions: &[(TenantId, SessionId)]) -> Result<Vec<StreamEnd>>;
    /// Deletes events older than `kept`, from the beginning of each session on, up to the first of an unfinished run. Looks at
    /// `limit` sessions, after `after` in id order, and deletes a bounded number of rows of each. Acts for the system.
    async fn trim_events(&self, kept: Duration, after: Option<SessionId>, limit: u32) -> Result<Trimmed>;
}

/// Where a session's stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
    /// Who executes its runs now, as far as it is recorded.
    pub owner: Option<WorkerId>,
}

/// What trimming some sessions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Sessions of which something was deleted, and how many rows.
    pub sessions: u64,
    pub rows: u64,
    /// The last session that was looked at, to go on after. Nothing when there can be none behind it.
    pub next: Option<SessionId>,
}

#[derive(Clone, Debug, Default)]
pub struct EventSlice {
    pub events: Vec<Event>,
    /// Cursor of the newest event of the session.
    pub last_cursor: Cursor,
}
