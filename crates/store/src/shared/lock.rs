//! Locking the sessions that a transaction decides about.

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

/// Locked sessions, and the time at which they were: the database's, so that the clocks of processes do not matter.
pub(super) struct Locked {
    pub(super) heads: HashMap<Uuid, LockedHead>,
    pub(super) at: Timestamp,
}

/// Locks sessions for decisions that do not depend on whether their owners live.
pub(super) async fn lock(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
) -> Result<Locked> {
    found(rows(connection, sessions).await?)
}

/// Locks sessions and finds out which recorded owners still live. An owner whose lease ended is written off for good, under
/// a lock on its row: had it renewed in the meantime, it would count as alive. Also tells of the leases of `askers`.
pub(super) async fn lock_with_leases(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
    askers: impl Iterator<Item = Uuid>,
) -> Result<(Locked, HashMap<Uuid, Owner>)> {
    let rows = rows(connection, sessions).await?;
    let mut at = time_of(&rows);
    let mut owners: Vec<Uuid> = rows.iter().filter_map(|row| row.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let workers: HashSet<Uuid> = owners.iter().copied().chain(askers).collect();
    let mut leases = HashMap::new();
    if !workers.is_empty() {
        let found = dialect::leases(connection, &workers.into_iter().collect::<Vec<_>>()).await?;
        // What follows from the end of a lease comes after it, however long the database stood still in between.
        at = found.iter().filter_map(|lease| lease.now).map(|now| now.0).fold(at, Timestamp::max);
        leases.extend(found.into_iter().map(|it| (it.id, it.owner())));
    }
    for owner in owners {
        let worker = WorkerId::from_uuid(owner);
        // Rows are deleted of workers that are long gone and own nothing. Whoever has none cannot renew, so nothing has to be written off.
        let Some(lease) = leases.get_mut(&owner) else {
            leases.insert(owner, Owner::Expired { worker });
            continue;
        };
        if matches!(lease, Owner::Expired { .. }) && !write_off(connection, owner).await? {
            *lease = Owner::Alive { worker, lease_left: Duration::from_secs(1) };
        }
    }
    let head = |row: HeadRow| {
        let owner = row.owner.and_then(|owner| leases.get(&owner)).copied().unwrap_or(Owner::Nobody);
        Ok((row.id, row.into_head(owner)?))
    };
    let heads = rows.into_iter().map(head).collect::<Result<_>>()?;
    Ok((Locked { heads, at }, leases))
}

/// Sessions as [`dialect::peek_heads`] or a lock found them.
pub(super) fn found(rows: Vec<HeadRow>) -> Result<Locked> {
    let at = time_of(&rows);
    let heads =
        rows.into_iter().map(|row| Ok((row.id, row.into_head_with_owner()?))).collect::<Result<_>>()?;
    Ok(Locked { heads, at })
}

async fn rows(connection: &mut Connection, sessions: impl Iterator<Item = Uuid>) -> Result<Vec<HeadRow>> {
    let mut ids: Vec<Uuid> = sessions.collect();
    ids.sort_unstable();
    ids.dedup();
    dialect::lock_heads(connection, &ids).await
}

fn time_of(rows: &[HeadRow]) -> Timestamp {
    rows.iter().filter_map(|row| row.now).map(|at| at.0).max().unwrap_or_else(now)
}

/// Marks a worker as gone unless it has renewed its lease after all.
async fn write_off(connection: &mut Connection, worker: Uuid) -> Result<bool> {
    let sql = format!(
        "UPDATE workers SET state = {WORKER_GONE} WHERE id = $1 AND (state = {WORKER_GONE} OR lease_until <= {NOW})"
    );
    let done = query(AssertSqlSafe(sql)).bind(worker).execute(connection).await.map_err(db)?;
    Ok(done.rows_affected() == 1)
}
