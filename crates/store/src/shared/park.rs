//! Parked runs: how they wait, and how they resume.
//!
//! No wake-up is lost. What a run waits for becomes true in a transaction that commits *before* [`resume_if_ready`]
//! checks the run, and both that check and the parking itself happen under the lock of the run's session. So either the
//! parking sees that the wait is satisfied, or the check sees that the run is parked. For budgets, the lock of the
//! budget does the same.

use std::collections::{BTreeSet, HashMap, HashSet};

use remuda_domain::{
    Appended, EventBody, RunId, TenantId, Timestamp,
    budget::Amount,
    error::Result,
    event::NewEvent,
    run::{self, ParkReason},
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use sqlx_macros::FromRow;
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, id_list},
    lock::lock,
    placement, spending,
    store::Context,
    worked_time,
    write_set::WriteSet,
};
use crate::{
    ParkRequest, SessionChange,
    error::{corrupt, db},
    rows::{LockedHead, amount_from_db},
    time::DbTime,
};

/// The deduplicated runs and approvals that a run is about to wait for, and how many of them it needs.
pub(super) fn awaited(park_request: &ParkRequest) -> (Vec<Uuid>, usize) {
    let runs = park_request.children.iter().map(|run| run.as_uuid());
    let approvals = park_request.approvals.iter().map(|approval| approval.as_uuid());
    let awaited: BTreeSet<Uuid> = runs.chain(approvals).collect();
    // A run never needs more than it waits for.
    let needed = (park_request.needed as usize).min(awaited.len());
    (awaited.into_iter().collect(), needed)
}

/// Whether a wait is already satisfied before the run is parked. `made` contains the runs and approvals that the same
/// commit creates. For budgets, the caller has locked the budgets that cover the run.
pub(super) async fn is_satisfied(
    connection: &mut Connection,
    run: RunId,
    park_request: &ParkRequest,
    made: &HashSet<Uuid>,
) -> Result<bool> {
    if park_request.reason == ParkReason::Budget {
        return match park_request.amount {
            Some(amount) => spending::has_room(connection, run.as_uuid(), amount).await,
            None => Ok(false),
        };
    }
    if park_request.needed == 0 {
        return Ok(false);
    }
    let (awaited, needed) = awaited(park_request);
    let older: Vec<Uuid> = awaited.into_iter().filter(|id| !made.contains(id)).collect();
    if older.len() < needed {
        return Ok(false);
    }
    Ok(older.len() - outstanding(connection, &older).await? >= needed)
}

/// How many of these runs and approvals are unfinished.
async fn outstanding(connection: &mut Connection, ids: &[Uuid]) -> Result<usize> {
    let mut count = 0;
    for sql in [
        format!("SELECT count(CASE WHEN state < 10 THEN 1 END) FROM runs WHERE id {AMONG_1}"),
        format!("SELECT count(CASE WHEN state = 'pending' THEN 1 END) FROM approvals WHERE id {AMONG_1}"),
    ] {
        let found: i64 = query_scalar(AssertSqlSafe(sql))
            .bind(id_list(ids)?)
            .fetch_one(&mut *connection)
            .await
            .map_err(db)?;
        count += usize::try_from(found).unwrap_or(0);
    }
    Ok(count)
}

/// A row of `waits w` is satisfied. The subqueries force two key lookups, whatever the planner estimates.
const WAIT_SATISFIED: &str = "coalesce((SELECT c.state FROM runs c WHERE c.id = w.awaited), 10) >= 10 \
    AND coalesce((SELECT a.state FROM approvals a WHERE a.id = w.awaited), '') <> 'pending'";

/// The columns of a [`ParkedRun`].
macro_rules! parked_columns {
    () => {
        "id, parked, parked_at, wait_needed, wait_tokens, wait_micros"
    };
}
pub(super) use parked_columns;

/// A parked run and its wait.
#[derive(Debug, FromRow)]
pub(super) struct ParkedRun {
    pub(super) id: Uuid,
    parked: String,
    parked_at: DbTime,
    wait_needed: Option<i32>,
    wait_tokens: Option<i64>,
    wait_micros: Option<i64>,
}

impl ParkedRun {
    /// Loads the run if it is parked. The caller holds the session's lock, which keeps it so.
    pub(super) async fn load(connection: &mut Connection, run: Uuid) -> Result<Option<Self>> {
        query_as(concat!("SELECT ", parked_columns!(), " FROM runs WHERE id = $1 AND state + 0 = 2"))
            .bind(run)
            .fetch_optional(connection)
            .await
            .map_err(db)
    }

    fn reason(&self) -> Result<ParkReason> {
        ParkReason::parse(&self.parked).ok_or_else(|| corrupt("park reason"))
    }

    fn waits_for_budget(&self) -> bool {
        self.parked == ParkReason::Budget.as_str()
    }

    /// The amount that a run parked for its budget could not reserve.
    pub(super) fn amount(&self) -> Option<Amount> {
        Some(amount_from_db(self.wait_tokens?, self.wait_micros?))
    }

    /// How many waits must be satisfied; `None` for a run that only an explicit call resumes.
    fn needed(&self) -> Option<i64> {
        self.wait_needed.map(i64::from).filter(|needed| *needed > 0)
    }

    /// Whether the run may resume, see [`ready_to_resume`].
    pub(super) async fn is_ready(&self, connection: &mut Connection, raised: bool) -> Result<bool> {
        Ok(!ready_to_resume(connection, std::slice::from_ref(self), raised).await?.is_empty())
    }

    /// Puts the run back at the head of its queue. The time that its children worked counts as its own.
    pub(super) async fn resume(
        &self,
        connection: &mut Connection,
        locked: &mut LockedHead,
        at: Timestamp,
        writes: &mut WriteSet,
    ) -> Result<Appended> {
        let (run, reason) = (RunId::from_uuid(self.id), self.reason()?);
        let waited = (at - self.parked_at.0).to_std().unwrap_or_default();
        let worked = match reason {
            ParkReason::Children => worked_time::worked_during_wait(connection, self.id, at).await?,
            ParkReason::Approval | ParkReason::Budget | ParkReason::External => std::time::Duration::ZERO,
        };
        let pause = run::pause(reason, waited, worked).as_millis();
        query(
            "UPDATE runs SET state = 0, parked = NULL, parked_at = NULL, wait_needed = NULL, wait_tokens = NULL, \
             wait_micros = NULL, paused_ms = paused_ms + $2, worked_ms = worked_ms + $3 WHERE id = $1",
        )
        .bind(self.id)
        .bind(i64::try_from(pause).unwrap_or(i64::MAX))
        .bind(i64::try_from(worked.as_millis()).unwrap_or(i64::MAX))
        .execute(&mut *connection)
        .await
        .map_err(db)?;
        if locked.has_related {
            query("DELETE FROM waits WHERE run_id = $1")
                .bind(self.id)
                .execute(connection)
                .await
                .map_err(db)?;
        }
        writes.append(locked, vec![NewEvent { run: Some(run), at, body: EventBody::RunResumed }])
    }
}

/// Those of these parked runs that may resume. After a budget was `raised`, also those that did not record an amount.
pub(super) async fn ready_to_resume(
    connection: &mut Connection,
    parked: &[ParkedRun],
    raised: bool,
) -> Result<Vec<RunId>> {
    let (for_budget, for_others): (Vec<&ParkedRun>, Vec<&ParkedRun>) =
        parked.iter().partition(|parked_run| parked_run.waits_for_budget());
    let amounts = |parked_run: &&ParkedRun| {
        Some((parked_run.id, parked_run.amount().or(raised.then(Amount::default))?))
    };
    let amounts: Vec<(Uuid, Amount)> = for_budget.iter().filter_map(amounts).collect();
    let mut ready = match amounts.is_empty() {
        true => HashSet::new(),
        false => spending::runs_with_room(connection, &amounts).await?,
    };
    let needed: HashMap<Uuid, i64> =
        for_others.iter().filter_map(|parked_run| Some((parked_run.id, parked_run.needed()?))).collect();
    if !needed.is_empty() {
        let ids: Vec<Uuid> = needed.keys().copied().collect();
        let sql = format!(
            "SELECT w.run_id, count(*) FROM waits w WHERE w.run_id {AMONG_1} AND {WAIT_SATISFIED} GROUP BY w.run_id"
        );
        let come: Vec<(Uuid, i64)> =
            query_as(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(connection).await.map_err(db)?;
        let enough = |(run, come): &(Uuid, i64)| needed.get(run).is_some_and(|needed| come >= needed);
        ready.extend(come.iter().filter(|it| enough(it)).map(|(run, _)| *run));
    }
    Ok(ready.into_iter().map(RunId::from_uuid).collect())
}

/// Resumes a run if it is parked and its wait is satisfied. With a tenant, only a run of that tenant.
pub(super) async fn resume_if_ready(
    context: &Context,
    tenant: Option<TenantId>,
    run: RunId,
) -> Result<Option<SessionChange>> {
    try_resume(context, tenant, run, false).await
}

/// Resumes a run that waits for a budget, after a budget that covers it was raised.
pub(super) async fn resume_after_raise(context: &Context, run: RunId) -> Result<Option<SessionChange>> {
    try_resume(context, None, run, true).await
}

async fn try_resume(
    context: &Context,
    tenant: Option<TenantId>,
    run: RunId,
    raised: bool,
) -> Result<Option<SessionChange>> {
    let found: Option<(Uuid, Uuid, i16)> =
        query_as("SELECT session_id, tenant_id, state FROM runs WHERE id = $1")
            .bind(run.as_uuid())
            .fetch_optional(&context.reader)
            .await
            .map_err(db)?;
    let Some((session, owner, state)) = found else { return Ok(None) };
    // An end is final, so it can be checked without the lock. Whether a live run is parked cannot.
    if state >= 10 || tenant.is_some_and(|tenant| tenant.as_uuid() != owner) {
        return Ok(None);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let mut locked = lock(&mut tx, std::iter::once(session)).await?;
    let Some(parked_run) = ParkedRun::load(&mut tx, run.as_uuid()).await? else { return Ok(None) };
    if !parked_run.is_ready(&mut tx, raised).await? {
        return Ok(None);
    }
    let at = locked.at;
    let Some(head) = locked.heads.get_mut(&session) else { return Ok(None) };
    let mut writes = WriteSet::default();
    let events = parked_run.resume(&mut tx, head, at, &mut writes).await?;
    let change = placement::session_change(head, events);
    writes.save_heads(&locked, [session]);
    writes.commit(context, tx).await?;
    Ok(Some(change))
}

/// Resumes those of these runs that are ready, mostly parents of ended runs. Errors are logged: the next
/// [`resume_ready`](super::resume::resume_ready) finds these runs, and the other runs are not delayed.
pub(super) async fn resume_all_ready(context: &Context, runs: &[RunId]) -> Vec<SessionChange> {
    let mut changes = Vec::new();
    for run in runs.iter().map(|run| run.as_uuid()).collect::<BTreeSet<Uuid>>() {
        let run = RunId::from_uuid(run);
        match resume_if_ready(context, None, run).await {
            Ok(change) => changes.extend(change),
            Err(error) => {
                tracing::warn!(%run, error = error.chain(), "resuming a run failed; the reconciler will retry")
            }
        }
    }
    changes
}
