//! Related rows of a run, beside its steps: approvals, waits, reservations, parent and children.
//!
//! Only sessions with the flag `ties` have runs with related rows, so the end of every other run needs no query here.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    ApprovalId, EventBody, RunId, Timestamp, ToolCallId,
    approval::{ApprovalRequest, ApprovalState},
    error::Result,
    event::NewEvent,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use uuid::Uuid;

use super::dialect::{AMONG_1, Connection, id_list};
use crate::{
    NewApproval,
    error::{db, parse},
};

/// An approval is pending. `|| ''` keeps the planner from walking the index of all pending approvals instead of looking
/// up the run's.
const IS_PENDING: &str = "state || '' = 'pending'";

/// The related rows that the end of a run has to handle.
#[derive(Clone, Debug, Default)]
pub(super) struct RelatedRows {
    pub(super) parent: Option<RunId>,
    /// Pending approvals.
    pending: Vec<(ApprovalId, ToolCallId)>,
}

impl RelatedRows {
    /// Adds approvals that the same commit requests.
    pub(super) fn add_pending(&mut self, approvals: &[NewApproval]) {
        self.pending.extend(approvals.iter().map(|it| (it.id, it.request.call)));
    }

    /// The events that withdraw the pending approvals of an ending run.
    pub(super) fn withdrawal_events(&self, run: RunId, at: Timestamp) -> impl Iterator<Item = NewEvent> + '_ {
        self.pending.iter().map(move |(approval, call)| {
            let body = EventBody::ApprovalDecided {
                approval: *approval,
                call: *call,
                state: ApprovalState::Withdrawn,
                by: None,
                message: String::new(),
            };
            NewEvent { run: Some(run), at, body }
        })
    }
}

pub(super) async fn load(connection: &mut Connection, runs: &[Uuid]) -> Result<HashMap<Uuid, RelatedRows>> {
    let mut related: HashMap<Uuid, RelatedRows> = HashMap::new();
    if runs.is_empty() {
        return Ok(related);
    }
    let sql = format!("SELECT id, parent_run FROM runs WHERE id {AMONG_1}");
    let parents: Vec<(Uuid, Option<Uuid>)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(&mut *connection).await.map_err(db)?;
    for (run, parent) in parents {
        related.entry(run).or_default().parent = parent.map(RunId::from_uuid);
    }
    let sql = format!(
        "SELECT id, run_id, request FROM approvals WHERE run_id {AMONG_1} AND {IS_PENDING} ORDER BY id"
    );
    let pending: Vec<(Uuid, Uuid, String)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    for (approval, run, request) in pending {
        let call = parse::<ApprovalRequest>("request", &request)?.call;
        related.entry(run).or_default().pending.push((ApprovalId::from_uuid(approval), call));
    }
    Ok(related)
}

/// Withdraws and deletes the related rows of ended runs.
pub(super) async fn release(connection: &mut Connection, runs: &[Uuid]) -> Result<()> {
    for sql in [
        format!("UPDATE approvals SET state = 'withdrawn' WHERE run_id {AMONG_1} AND {IS_PENDING}"),
        format!("DELETE FROM waits WHERE run_id {AMONG_1}"),
        format!("DELETE FROM reservations WHERE run_id {AMONG_1}"),
        format!("DELETE FROM spent_steps WHERE run_id {AMONG_1}"),
    ] {
        query(AssertSqlSafe(sql)).bind(id_list(runs)?).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

/// Which of these runs have unfinished children.
pub(super) async fn with_live_children(connection: &mut Connection, runs: &[Uuid]) -> Result<HashSet<Uuid>> {
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    let sql = format!(
        "SELECT DISTINCT parent_run FROM runs WHERE parent_run {AMONG_1} AND parent_run IS NOT NULL AND state + 0 < 10"
    );
    let parents: Vec<Uuid> =
        query_scalar(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    Ok(parents.into_iter().collect())
}
