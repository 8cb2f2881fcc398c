//! Reads sessions without locks, for the fast path.

use std::collections::HashMap;

use remuda_domain::{WorkerId, error::Result};
use sqlx::{AssertSqlSafe, query_as};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect::{Connection, LEASE_LEFT},
    lock::{LockedSessions, locked_from},
};
use crate::{
    error::db,
    rows::{HeadRow, HeadRunRow, LeaseRow, SessionSettings},
};

#[derive(FromRow)]
struct PeekedRow {
    #[sqlx(flatten)]
    head: HeadRow,
    #[sqlx(flatten)]
    settings: SessionSettings,
}

/// Reads session heads, and the settings that grants need.
pub(super) async fn sessions(
    connection: &mut Connection,
    sessions: &[Uuid],
) -> Result<(LockedSessions, HashMap<Uuid, SessionSettings>)> {
    let rows: Vec<PeekedRow> = query_as(concat!(
        "SELECT ",
        head_columns!(),
        ", ",
        settings_columns!(),
        ", clock_timestamp() AS now FROM sessions s JOIN workspaces w ON w.id = s.workspace_id WHERE s.id = ANY($1)"
    ))
    .bind(sessions)
    .fetch_all(connection)
    .await
    .map_err(db)?;
    let (heads, settings): (Vec<_>, Vec<_>) = rows.into_iter().map(|row| (row.head, row.settings)).unzip();
    let settings = heads.iter().map(|head| head.session_id).zip(settings).collect();
    Ok((locked_from(heads)?, settings))
}

/// A session to claim, with its head run and the lease of the claiming worker.
#[derive(Debug, FromRow)]
pub(super) struct ClaimableRow {
    #[sqlx(flatten)]
    pub(super) head: HeadRow,
    #[sqlx(flatten)]
    pub(super) run: HeadRunRow,
    lease_state: i16,
    lease_left_us: i64,
}

impl ClaimableRow {
    pub(super) fn lease(&self, worker: WorkerId) -> LeaseRow {
        let (state, left_us) = (self.lease_state, self.lease_left_us);
        LeaseRow { id: worker.as_uuid(), state, left_us, now: self.head.now }
    }
}

/// Reads sessions of the claiming worker's pool that have a head run.
pub(super) async fn claimable(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
    worker: WorkerId,
) -> Result<Vec<ClaimableRow>> {
    let sql = format!(
        concat!(
            "SELECT ",
            head_columns!(),
            ", ",
            run_columns!(),
            ", ",
            settings_columns!(),
            ", clock_timestamp() AS now, a.state AS lease_state, a.left_us AS lease_left_us \
             FROM (SELECT state, pool, {lease_left} AS left_us FROM workers WHERE id = $2) a CROSS JOIN unnest($1::uuid[]) AS wanted (id) \
             JOIN sessions s ON s.id = wanted.id AND s.pool = a.pool JOIN workspaces w ON w.id = s.workspace_id CROSS JOIN LATERAL (SELECT * FROM runs \
             WHERE session_id = wanted.id AND state < 10 ORDER BY seq LIMIT 1) r"
        ),
        lease_left = LEASE_LEFT
    );
    query_as(AssertSqlSafe(sql))
        .bind(sessions.collect::<Vec<_>>())
        .bind(worker.as_uuid())
        .fetch_all(connection)
        .await
        .map_err(db)
}
