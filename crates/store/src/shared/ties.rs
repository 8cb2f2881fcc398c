//! What hangs on a run beside its steps: questions to people, waits, reservations, and the runs above and below it.
//!
//! Only a session that is marked for it (`ties`) has runs with any of these, so that the end of every other run costs nothing here.

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

/// An approval is pending. `|| ''` keeps the planner from walking the index of all pending ones instead of looking a run's up.
const OPEN: &str = "state || '' = 'pending'";

/// What the end of a run has to see to.
#[derive(Clone, Debug, Default)]
pub(super) struct Ties {
    pub(super) parent: Option<RunId>,
    /// Questions that nobody has answered.
    open: Vec<(ApprovalId, ToolCallId)>,
}

impl Ties {
    /// Adds questions that are asked only now.
    pub(super) fn ask(&mut self, approvals: &[NewApproval]) {
        self.open.extend(approvals.iter().map(|it| (it.id, it.request.call)));
    }

    /// The events that close the open questions of a run that ends.
    pub(super) fn withdrawn(&self, run: RunId, at: Timestamp) -> impl Iterator<Item = NewEvent> + '_ {
        self.open.iter().map(move |(approval, call)| {
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

pub(super) async fn load(connection: &mut Connection, runs: &[Uuid]) -> Result<HashMap<Uuid, Ties>> {
    let mut ties: HashMap<Uuid, Ties> = HashMap::new();
    if runs.is_empty() {
        return Ok(ties);
    }
    let sql = format!("SELECT id, parent_run FROM runs WHERE id {AMONG_1}");
    let parents: Vec<(Uuid, Option<Uuid>)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(&mut *connection).await.map_err(db)?;
    for (run, parent) in parents {
        ties.entry(run).or_default().parent = parent.map(RunId::from_uuid);
    }
    let sql =
        format!("SELECT id, run_id, request FROM approvals WHERE run_id {AMONG_1} AND {OPEN} ORDER BY id");
    let open: Vec<(Uuid, Uuid, String)> =
        query_as(AssertSqlSafe(sql)).bind(id_list(runs)?).fetch_all(connection).await.map_err(db)?;
    for (approval, run, request) in open {
        let call = parse::<ApprovalRequest>("request", &request)?.call;
        ties.entry(run).or_default().open.push((ApprovalId::from_uuid(approval), call));
    }
    Ok(ties)
}

/// Lets go of what these runs held when they ended.
pub(super) async fn untie(connection: &mut Connection, runs: &[Uuid]) -> Result<()> {
    for sql in [
        format!("UPDATE approvals SET state = 'withdrawn' WHERE run_id {AMONG_1} AND {OPEN}"),
        format!("DELETE FROM waits WHERE run_id {AMONG_1}"),
        format!("DELETE FROM reservations WHERE run_id {AMONG_1}"),
        format!("DELETE FROM spent_steps WHERE run_id {AMONG_1}"),
    ] {
        query(AssertSqlSafe(sql)).bind(id_list(runs)?).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

/// Which of these runs have unfinished ones directly below them.
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
