//! Locks the sessions that a transaction decides about.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use remuda_domain::{Timestamp, WorkerId, error::Result, session::Owner};
use sqlx::{AssertSqlSafe, query};
use uuid::Uuid;

use super::dialect::{self, Connection, NOW};
use crate::{
    error::db,
    rows::{HeadRow, LockedHead, WORKER_GONE},
    time::now,
};

/// Loaded session heads and the database's time at which they were locked, so that the clocks of processes do not
/// matter.
pub(super) struct LockedSessions {
    pub(super) heads: HashMap<Uuid, LockedHead>,
    pub(super) at: Timestamp,
}

/// The lease of a worker and its pool.
pub(super) struct WorkerLease {
    pub(super) owner: Owner,
    pub(super) pool: String,
}

/// Locks sessions for decisions that do not depend on the lease of their owners.
pub(super) async fn lock(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
) -> Result<LockedSessions> {
    locked_from(lock_rows(connection, sessions).await?)
}

/// Locks sessions and checks the leases of their recorded owners. An owner with an expired lease is marked gone for
/// good, under a lock on its row; if it has renewed meanwhile, it counts as alive. Also returns the leases of
/// `claimants`.
pub(super) async fn lock_with_leases(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
    claimants: impl Iterator<Item = Uuid>,
) -> Result<(LockedSessions, HashMap<Uuid, WorkerLease>)> {
    let rows = lock_rows(connection, sessions).await?;
    let mut at = time_of(&rows);
    let mut owners: Vec<Uuid> = rows.iter().filter_map(|row| row.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let workers: HashSet<Uuid> = owners.iter().copied().chain(claimants).collect();
    let mut leases = HashMap::new();
    if !workers.is_empty() {
        let found = dialect::leases(connection, &workers.into_iter().collect::<Vec<_>>()).await?;
        // What follows from an expired lease is dated after it, however long the database stalled in between.
        at = found.iter().filter_map(|it| it.lease.now).map(|now| now.0).fold(at, Timestamp::max);
        leases.extend(
            found.into_iter().map(|it| (it.lease.id, WorkerLease { owner: it.lease.owner(), pool: it.pool })),
        );
    }
    for owner in owners {
        let worker = WorkerId::from_uuid(owner);
        // Rows of workers that are long gone are deleted. Without a row a worker cannot renew, so it need not be marked
        // gone.
        let Some(lease) = leases.get_mut(&owner) else {
            leases.insert(owner, WorkerLease { owner: Owner::Expired { worker }, pool: String::new() });
            continue;
        };
        if matches!(lease.owner, Owner::Expired { .. }) && !mark_gone(connection, owner).await? {
            lease.owner = Owner::Alive { worker, lease_left: Duration::from_secs(1) };
        }
    }
    let head = |row: HeadRow| {
        let lease = row.owner.and_then(|owner| leases.get(&owner));
        let owner = lease.map_or(Owner::Nobody, |lease| lease.owner);
        Ok((row.session_id, row.into_head(owner)?))
    };
    let heads = rows.into_iter().map(head).collect::<Result<_>>()?;
    Ok((LockedSessions { heads, at }, leases))
}

/// Converts rows that were read with or without locks.
pub(super) fn locked_from(rows: Vec<HeadRow>) -> Result<LockedSessions> {
    let at = time_of(&rows);
    let heads = rows
        .into_iter()
        .map(|row| Ok((row.session_id, row.into_head_with_owner()?)))
        .collect::<Result<_>>()?;
    Ok(LockedSessions { heads, at })
}

async fn lock_rows(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
) -> Result<Vec<HeadRow>> {
    let mut ids: Vec<Uuid> = sessions.collect();
    ids.sort_unstable();
    ids.dedup();
    dialect::lock_heads(connection, &ids).await
}

fn time_of(rows: &[HeadRow]) -> Timestamp {
    rows.iter().filter_map(|row| row.now).map(|at| at.0).max().unwrap_or_else(now)
}

/// Marks a worker as gone unless it has renewed its lease. Returns whether it is gone.
async fn mark_gone(connection: &mut Connection, worker: Uuid) -> Result<bool> {
    let sql = format!(
        "UPDATE workers SET state = {WORKER_GONE} WHERE id = $1 AND (state = {WORKER_GONE} OR lease_until <= {NOW})"
    );
    let done = query(AssertSqlSafe(sql)).bind(worker).execute(connection).await.map_err(db)?;
    Ok(done.rows_affected() == 1)
}
