//! Reads the event streams.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use remuda_domain::{Cursor, Event, SessionId, TenantId, WorkerId, error::Result};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    chunks,
    dialect::{AMONG_1, id_list},
    store::SqlStore,
    submit::session_not_found,
    trim,
};
use crate::{
    EventSlice, Events, StreamEnd, TrimPage,
    error::{db, parse},
};

#[derive(Debug, FromRow)]
struct EndRow {
    id: Uuid,
    tenant_id: Uuid,
    last_cursor: i64,
    owner: Option<Uuid>,
}

impl From<EndRow> for StreamEnd {
    fn from(row: EndRow) -> Self {
        Self {
            tenant: TenantId::from_uuid(row.tenant_id),
            session: SessionId::from_uuid(row.id),
            last_cursor: row.last_cursor,
            owner: row.owner.map(WorkerId::from_uuid),
        }
    }
}

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
        let (limit, mut events, mut from) = (limit.max(1), Vec::new(), after);
        while events.len() < limit && from < last_cursor {
            let missing = i64::try_from(limit - events.len()).unwrap_or(i64::MAX);
            let rows = chunks::after(&mut connection, session.as_uuid(), from, missing).await?;
            let Some(newest) = rows.last() else { break };
            from = newest.last_cursor;
            for row in &rows {
                let chunk: Vec<Event> = parse("event", &row.chunk)?;
                events.extend(chunk.into_iter().filter(|event| event.cursor > after));
            }
        }
        let newest = events.last().map_or(last_cursor, |event| event.cursor.max(last_cursor));
        Ok(EventSlice { events, last_cursor: newest })
    }

    async fn last_cursors(&self, sessions: &[(TenantId, SessionId)]) -> Result<Vec<StreamEnd>> {
        let ids: Vec<Uuid> = sessions.iter().map(|(_, session)| session.as_uuid()).collect();
        let sql = format!("SELECT id, tenant_id, last_cursor, owner FROM sessions WHERE id {AMONG_1}");
        let rows: Vec<EndRow> = query_as(AssertSqlSafe(sql))
            .bind(id_list(&ids)?)
            .fetch_all(&self.context.reader)
            .await
            .map_err(db)?;
        let requested: HashSet<(TenantId, SessionId)> = sessions.iter().copied().collect();
        let ends = rows.into_iter().map(StreamEnd::from);
        Ok(ends.filter(|end| requested.contains(&(end.tenant, end.session))).collect())
    }

    async fn trim_events(
        &self,
        retention: Duration,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<TrimPage> {
        let context = self.context.clone();
        self.run_to_completion(async move { trim::trim(&context, retention, after, limit).await }).await
    }
}
