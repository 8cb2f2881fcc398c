//! Runs right behind the one that an owner executes.
//!
//! The next run of a session need not wait until the end of the one before it is on the disk: its owner may go on meanwhile, with whatever
//! can be repeated, and commit several ends together. What makes this safe is decided here, under the lock of the session: a run is
//! ended behind another only if it is still next in line.

use std::collections::HashSet;

use remuda_domain::{Run, Timestamp, error::Result, event::NewEvent};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{AMONG_1, Connection, id_list},
    notes,
    writes::Writes,
};
use crate::{
    Commit, Finish, Grant, Then,
    error::db,
    rows::{LockedHead, RunRow},
};

/// So many are told at once, however many are wanted.
pub(super) const MOST: u32 = 64;

/// Those of the runs behind others that nobody has stopped in the meantime. They were next in line when their owner was told of
/// them, and nothing comes between two runs of a line.
pub(super) async fn still_queued(connection: &mut Connection, batch: &[Commit]) -> Result<HashSet<Uuid>> {
    let behind = batch.iter().flat_map(|commit| &commit.behind);
    let ids: Vec<Uuid> = behind.map(|commit| commit.run.as_uuid()).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    // `+ 0` keeps the planner from walking an index of all live runs instead of looking these up.
    let sql = format!("SELECT id FROM runs WHERE id {AMONG_1} AND state + 0 = 0 AND cancel_at IS NULL");
    let queued: Vec<Uuid> =
        query_scalar(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
    Ok(queued.into_iter().collect())
}

/// Ends the runs behind one that has just ended, up to the first that is not as its owner believes. Returns the ends of those taken.
pub(super) fn end_those_behind<'a>(
    commit: &'a Commit,
    head: &mut LockedHead,
    queued: &HashSet<Uuid>,
    at: Timestamp,
    events: &mut Vec<NewEvent>,
    writes: &mut Writes,
) -> Result<Vec<&'a Finish>> {
    let mut taken = Vec::new();
    for next in &commit.behind {
        let Then::End(finish) = &next.then else { break };
        // What hangs on other runs has more to see to than fits here.
        let simple = next.is_small_end() && !head.ties && next.fence == commit.fence;
        if !simple || !queued.contains(&next.run.as_uuid()) {
            break;
        }
        head.head.follow(next.run)?;
        events.extend(notes::told(next, finish, head, at));
        events.push(notes::end(next, finish, head, at, writes)?);
        taken.push(finish);
    }
    Ok(taken)
}

/// Runs behind the granted one that can be executed like it: nobody has tried or stopped them, and nothing limits them.
pub(super) async fn load(connection: &mut Connection, grant: &Grant, wanted: u32) -> Result<Vec<Run>> {
    if wanted == 0 || grant.budgeted.is_some() {
        return Ok(Vec::new());
    }
    let rows: Vec<RunRow> = query_as(concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs r JOIN sessions s ON s.id = r.session_id \
         WHERE r.session_id = $1 AND r.state < 10 AND r.seq > $2 ORDER BY r.seq LIMIT $3"
    ))
    .bind(grant.fence.session.as_uuid())
    .bind(grant.run.seq)
    .bind(i64::from(wanted.min(MOST)))
    .fetch_all(connection)
    .await
    .map_err(db)?;
    rows.into_iter().take_while(RunRow::is_untouched).map(RunRow::into_run).collect()
}
