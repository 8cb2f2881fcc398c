//! Successors: the runs after the one that an owner executes.
//!
//! An owner may execute the next runs of a session before the end of the current run is durable, as far as their work
//! is repeatable, and commit several ends together. This module makes that safe: under the session's lock, a successor
//! is ended only if it is still next in the queue.

use std::collections::HashSet;

use remuda_domain::{Run, Timestamp, error::Result, event::NewEvent};
use sqlx::{AssertSqlSafe, query_as, query_scalar};
use uuid::Uuid;

use super::{
    commit_rows,
    dialect::{AMONG_1, Connection, id_list},
    write_set::WriteSet,
};
use crate::{
    Commit, Finish, Grant, RunTransition,
    error::db,
    rows::{LockedHead, RunRow},
};

/// Most following runs that a grant returns.
pub(super) const MAX_PREFETCH: u32 = 64;

/// Successors in this batch that were not cancelled meanwhile. They were next in the queue when their owner learned of
/// them, and no run is ever inserted between two queued runs.
pub(super) async fn still_queued(connection: &mut Connection, batch: &[Commit]) -> Result<HashSet<Uuid>> {
    let successors = batch.iter().flat_map(|commit| &commit.successors);
    let ids: Vec<Uuid> = successors.map(|commit| commit.run.as_uuid()).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    // `+ 0` keeps the planner from walking an index of all live runs instead of looking these up.
    let sql = format!("SELECT id FROM runs WHERE id {AMONG_1} AND state + 0 = 0 AND cancel_at IS NULL");
    let queued: Vec<Uuid> =
        query_scalar(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
    Ok(queued.into_iter().collect())
}

/// Ends the successors of a run that has just ended, up to the first one that was changed meanwhile. Returns the ends
/// of the accepted ones.
pub(super) fn end_successors<'a>(
    commit: &'a Commit,
    head: &mut LockedHead,
    queued: &HashSet<Uuid>,
    at: Timestamp,
    events: &mut Vec<NewEvent>,
    writes: &mut WriteSet,
) -> Result<Vec<&'a Finish>> {
    let mut accepted_ends = Vec::new();
    for next in &commit.successors {
        let RunTransition::End(finish) = &next.then else { break };
        // Runs with related rows need more work than this function does.
        let simple = next.is_small_end() && !head.has_related && next.fence == commit.fence;
        if !simple || !queued.contains(&next.run.as_uuid()) {
            break;
        }
        head.head.follow(next.run)?;
        events.extend(commit_rows::ending_events(next, finish, head, at));
        events.push(commit_rows::end(next, finish, head, at, writes)?);
        accepted_ends.push(finish);
    }
    Ok(accepted_ends)
}

/// Loads the runs after the granted one that can be executed ahead, see [`Grant::following`].
pub(super) async fn load_following(
    connection: &mut Connection,
    grant: &Grant,
    prefetch: u32,
) -> Result<Vec<Run>> {
    if prefetch == 0 || grant.budgeted.is_some() {
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
    .bind(i64::from(prefetch.min(MAX_PREFETCH)))
    .fetch_all(connection)
    .await
    .map_err(db)?;
    rows.into_iter().take_while(RunRow::is_untouched).map(RunRow::into_run).collect()
}
