//! Reads, cancels and resumes runs.

use std::collections::HashMap;

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, Run, RunId, RunInput, RunState, SessionId, StepId, TenantId,
    error::Result,
    page::{Page, PageRequest},
    run::IfBusy,
    step::{self, Step},
};
use sqlx::{AssertSqlSafe, QueryBuilder, Row as _, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    cancel,
    dialect::{self, AMONG_1, Connection, Db, NOW, id_list},
    estimate_inputs,
    lock::lock,
    park::ParkedRun,
    placement, spending,
    store::{Context, SqlStore},
    submit,
    write_set::WriteSet,
};
use crate::{
    CancelScope, Cancelled, CancelledRuns, NewRun, RunDiagnostics, RunFilter, Runs, SessionChange, Submitted,
    coalesce::retry_on_conflict,
    error::{db, parse},
    rows::{HeadRow, RunRow, WORKER_ACTIVE},
};

pub(super) fn run_not_found() -> Error {
    Error::new(Code::RunNotFound, "there is no such run").at("run_id")
}

/// Fails with `run_not_found` unless the tenant has this run.
pub(super) async fn check_exists(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<()> {
    let found: Option<i64> = query_scalar("SELECT seq FROM runs WHERE id = $1 AND tenant_id = $2")
        .bind(run.as_uuid())
        .bind(tenant.as_uuid())
        .fetch_optional(connection)
        .await
        .map_err(db)?;
    found.map(|_| ()).ok_or_else(run_not_found)
}

async fn load_row(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<RunRow> {
    let found = dialect::runs_of_tenants(connection, &[(run.as_uuid(), tenant.as_uuid())]).await?.pop();
    found.ok_or_else(run_not_found)
}

/// The steps of one run, in order.
pub(super) async fn steps_of(connection: &mut Connection, row: &RunRow) -> Result<Vec<Step>> {
    let last = HashMap::from([(row.id, row.last_steps()?)]);
    let mut found = with_stored_steps(connection, &[row.id], last).await?;
    Ok(found.remove(&row.id).unwrap_or_default())
}

/// The steps of runs, each in order. The `last` steps, which were committed with the runs' ends, replace their earlier
/// versions. Reads stored steps only for the runs in `more`.
async fn with_stored_steps(
    connection: &mut Connection,
    more: &[Uuid],
    last: HashMap<Uuid, Vec<Step>>,
) -> Result<HashMap<Uuid, Vec<Step>>> {
    let mut of_runs: HashMap<Uuid, HashMap<StepId, Step>> = HashMap::new();
    if !more.is_empty() {
        for stored in dialect::load_steps(connection, more).await? {
            let step: Step = parse("step", &stored.step)?;
            of_runs.entry(stored.run_id).or_default().insert(step.id, step);
        }
    }
    for (run, steps) in last {
        of_runs.entry(run).or_default().extend(steps.into_iter().map(|step| (step.id, step)));
    }
    let in_order = |(run, steps): (Uuid, HashMap<StepId, Step>)| {
        let mut steps: Vec<Step> = steps.into_values().collect();
        steps.sort_by_key(|step| step.index);
        (run, steps)
    };
    Ok(of_runs.into_iter().map(in_order).collect())
}

/// Loads a run with its outcomes.
pub(super) async fn load(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<Run> {
    let found = load_all(connection, &[(run.as_uuid(), tenant.as_uuid())]).await?.remove(&run.as_uuid());
    found.ok_or_else(run_not_found)
}

/// Loads the runs that belong to the named tenants, with their outcomes. Nothing is read of other tenants' runs, so that
/// they take no longer than runs that do not exist.
async fn load_all(connection: &mut Connection, keys: &[(Uuid, Uuid)]) -> Result<HashMap<Uuid, Run>> {
    let rows = dialect::runs_of_tenants(connection, keys).await?;
    let last: HashMap<Uuid, Vec<Step>> =
        rows.iter().map(|row| Ok((row.id, row.last_steps()?))).collect::<Result<_>>()?;
    let runs = with_budgets(connection, rows).await?;
    // A small run has all its steps in its end.
    let is_whole = |run: &Run| match &run.input {
        RunInput::Tools(tools) => last.get(&run.id.as_uuid()).is_some_and(|it| it.len() == tools.calls.len()),
        RunInput::Message(_) => false,
    };
    let more: Vec<Uuid> = runs.iter().filter(|run| !is_whole(run)).map(|run| run.id.as_uuid()).collect();
    let mut steps = with_stored_steps(connection, &more, last).await?;
    let complete = |run: Run| {
        let steps = steps.remove(&run.id.as_uuid()).unwrap_or_default();
        let (answer, stop_reason) = (step::answer(&steps), step::stop_reason(&steps));
        let outcomes = steps.into_iter().filter_map(Step::into_call_outcome).collect();
        (run.id.as_uuid(), Run { outcomes, answer, stop_reason, ..run })
    };
    Ok(runs.into_iter().map(complete).collect())
}

/// A request to read a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRead {
    tenant: TenantId,
    run: RunId,
}

/// Reads runs for many callers at once.
pub(crate) async fn read_runs(connection: &mut Connection, batch: &[RunRead]) -> Result<Vec<Result<Run>>> {
    let mut keys: Vec<(Uuid, Uuid)> =
        batch.iter().map(|read| (read.run.as_uuid(), read.tenant.as_uuid())).collect();
    keys.sort_unstable();
    keys.dedup();
    let found = load_all(connection, &keys).await?;
    let answer = |read: &RunRead| {
        let run = found.get(&read.run.as_uuid()).filter(|run| run.tenant == read.tenant);
        run.cloned().ok_or_else(run_not_found)
    };
    Ok(batch.iter().map(answer).collect())
}

/// Converts rows to runs with their own budgets. Runs no query if there are none.
async fn with_budgets(connection: &mut Connection, rows: Vec<RunRow>) -> Result<Vec<Run>> {
    let own: Vec<Uuid> = rows.iter().filter(|row| row.has_budget()).map(|row| row.id).collect();
    let budgets = spending::load(connection, &own).await?;
    let run = |row: RunRow| Ok(Run { budget: budgets.get(&row.id).copied(), ..row.into_run()? });
    rows.into_iter().map(run).collect()
}

/// The first unfinished runs of a session, in order.
pub(super) async fn live_runs(
    connection: &mut Connection,
    session: SessionId,
    limit: i64,
) -> Result<Vec<Run>> {
    let rows: Vec<RunRow> = query_as(concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.session_id = $1 AND r.state < 10 ORDER BY r.seq \
         LIMIT $2"
    ))
    .bind(session.as_uuid())
    .bind(limit)
    .fetch_all(connection)
    .await
    .map_err(db)?;
    rows.into_iter().map(RunRow::into_run).collect()
}

/// Those of these runs that are unfinished, in the given order.
pub(super) async fn live_among(connection: &mut Connection, ids: &[Uuid]) -> Result<Vec<Run>> {
    let sql = format!(
        concat!(
            "SELECT ",
            run_columns!(),
            " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.id {among} AND r.state + 0 < 10"
        ),
        among = AMONG_1
    );
    let rows: Vec<RunRow> =
        query_as(AssertSqlSafe(sql)).bind(id_list(ids)?).fetch_all(connection).await.map_err(db)?;
    let mut by_id: HashMap<Uuid, RunRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    ids.iter().filter_map(|id| by_id.remove(id)).map(RunRow::into_run).collect()
}

/// A condition on the visible state; whether a queued run executes is recorded in its session.
fn state_condition(state: RunState) -> String {
    match state {
        RunState::Queued => "(r.state = 0 AND s.current_run IS DISTINCT FROM r.id)".to_owned(),
        RunState::Running => "(r.state = 0 AND s.current_run = r.id)".to_owned(),
        other => format!("r.state = {}", other.to_db()),
    }
}

/// The ids of a tenant's runs with a label.
fn push_labelled(sql: &mut QueryBuilder<Db>, tenant: TenantId, (key, value): (&str, &str)) {
    sql.push("SELECT run_id FROM run_labels WHERE tenant_id = ").push_bind(tenant.as_uuid());
    sql.push(" AND key = ").push_bind(key.to_owned());
    sql.push(" AND value = ").push_bind(value.to_owned());
}

async fn diagnostics(context: &Context, tenant: TenantId, run: RunId) -> Result<RunDiagnostics> {
    let mut connection = dialect::snapshot(&context.reader).await?;
    let row = load_row(&mut connection, tenant, run).await?;
    let steps = steps_of(&mut connection, &row).await?;
    let (answer, outcomes) =
        (step::answer(&steps), steps.iter().filter_map(Step::call_outcome).cloned().collect());
    let run = with_budgets(&mut connection, vec![row]).await?.pop().ok_or_else(run_not_found)?;
    let run = Run { outcomes, answer, stop_reason: step::stop_reason(&steps), ..run };
    let row: HeadRow = query_as(concat!("SELECT ", head_columns!(), " FROM sessions s WHERE s.id = $1"))
        .bind(run.session.as_uuid())
        .fetch_one(&mut *connection)
        .await
        .map_err(db)?;
    let owner = match row.owner {
        Some(worker) => dialect::leases(&mut connection, &[worker]).await?.pop(),
        None => None,
    };
    let owner = owner.map_or(remuda_domain::session::Owner::Nobody, |it| it.lease.owner());
    let head = row.into_head(owner)?.head;
    let ahead = query(
        "SELECT count(*) AS ahead, max(seq) AS nearest FROM runs WHERE session_id = $1 AND state < 10 AND seq < $2",
    )
    .bind(run.session.as_uuid())
    .bind(run.seq)
    .fetch_one(&mut *connection)
    .await
    .map_err(db)?;
    let nearest: Option<i64> = ahead.try_get("nearest").map_err(db)?;
    let blocked_by = query_scalar("SELECT id FROM runs WHERE session_id = $1 AND seq = $2")
        .bind(run.session.as_uuid())
        .bind(nearest)
        .fetch_optional(&mut *connection)
        .await
        .map_err(db)?;
    let sql = format!(
        "SELECT count(*) AS workers, CAST(coalesce(sum(slots - busy), 0) AS bigint) AS free FROM workers \
         WHERE pool = $1 AND state = {WORKER_ACTIVE} AND lease_until > {NOW}"
    );
    let workers =
        query(AssertSqlSafe(sql)).bind(head.pool.as_str()).fetch_one(&mut *connection).await.map_err(db)?;
    let waiting = match run.parked {
        Some(_) => ParkedRun::load(&mut connection, run.id.as_uuid()).await?,
        None => None,
    };
    let estimate_inputs = estimate_inputs::load(context, &mut connection, &run, &head, steps).await?;
    connection.rollback().await.map_err(db)?;
    let count = |column: &str| -> Result<i64> { workers.try_get(column).map_err(db) };
    Ok(RunDiagnostics {
        ahead: ahead.try_get("ahead").map_err(db)?,
        blocked_by: blocked_by.map(RunId::from_uuid),
        workers: u32::try_from(count("workers")?).unwrap_or(0),
        free_slots: u32::try_from(count("free")?).unwrap_or(0),
        needed: waiting.and_then(|waiting| waiting.amount()),
        estimate_inputs,
        run,
        head,
    })
}

/// Resumes a parked run on request.
async fn resume(context: &Context, tenant: TenantId, run: RunId) -> Result<SessionChange> {
    let mut tx = dialect::begin(&context.writer).await?;
    let session = load_row(&mut tx, tenant, run).await?.session_id;
    let mut locked = lock(&mut tx, std::iter::once(session)).await?;
    let Some(waiting) = ParkedRun::load(&mut tx, run.as_uuid()).await? else {
        return Err(Error::new(Code::NotParked, "the run is not parked").at("run_id"));
    };
    let at = locked.at;
    let head = locked.heads.get_mut(&session).ok_or_else(|| Error::internal("run without a session"))?;
    let mut writes = WriteSet::default();
    let events = waiting.resume(&mut tx, head, at, &mut writes).await?;
    let change = placement::session_change(head, events);
    writes.save_heads(&locked, [session]);
    writes.commit(context, tx).await?;
    Ok(change)
}

#[async_trait]
impl Runs for SqlStore {
    async fn submit(&self, run: NewRun) -> Result<Submitted> {
        if run.if_busy == IfBusy::Interrupt {
            let context = self.context.clone();
            let submit =
                async move { retry_on_conflict(|| submit::submit_interrupting(&context, &run)).await };
            return self.run_to_completion(submit).await;
        }
        self.context.disk_room.observe(self.coalescers.submits.call(run).await)
    }

    async fn get_run(&self, tenant: TenantId, run: RunId) -> Result<Run> {
        self.coalescers.run_reads.call(RunRead { tenant, run }).await
    }

    async fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Run>> {
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(concat!("SELECT ", run_columns!(), " FROM "));
        let mut labels = filter.labels.iter();
        // The index of labels has the order of the list.
        let id = match labels.next() {
            Some(first) => {
                push_labelled(sql.push("("), tenant, first);
                sql.push(") l CROSS JOIN runs r JOIN sessions s ON s.id = r.session_id WHERE r.id = l.run_id AND r.tenant_id = ");
                "l.run_id"
            }
            None => {
                sql.push("runs r JOIN sessions s ON s.id = r.session_id WHERE r.tenant_id = ");
                "r.id"
            }
        };
        sql.push_bind(tenant.as_uuid());
        for label in labels {
            push_labelled(sql.push(" AND EXISTS ("), tenant, label);
            sql.push(" AND run_id = l.run_id)");
        }
        if let Some(session) = filter.session {
            sql.push(" AND r.session_id = ").push_bind(session.as_uuid());
        }
        if !filter.states.is_empty() {
            let conditions: Vec<String> = filter.states.iter().copied().map(state_condition).collect();
            sql.push(" AND (").push(conditions.join(" OR ")).push(")");
        }
        if let Some(after) = page.after::<RunId>()? {
            sql.push(format!(" AND {id} < ")).push_bind(after.as_uuid());
        }
        sql.push(format!(" ORDER BY {id} DESC LIMIT ")).push_bind(i64::from(page.size) + 1);
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let rows: Vec<RunRow> = sql.build_query_as().fetch_all(&mut *connection).await.map_err(db)?;
        let runs = with_budgets(&mut connection, rows).await?;
        Ok(Page::from_rows(runs, page.size, |run| run.id.to_string()))
    }

    async fn list_queue(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Run>> {
        let after = page.after::<i64>()?.unwrap_or(0);
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let rows: Vec<RunRow> = query_as(concat!(
            "SELECT ",
            run_columns!(),
            " FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.session_id = $1 AND r.tenant_id = $2 \
             AND r.state < 10 AND r.seq > $3 ORDER BY r.seq LIMIT $4"
        ))
        .bind(session.as_uuid())
        .bind(tenant.as_uuid())
        .bind(after)
        .bind(i64::from(page.size) + 1)
        .fetch_all(&mut *connection)
        .await
        .map_err(db)?;
        let runs = with_budgets(&mut connection, rows).await?;
        Ok(Page::from_rows(runs, page.size, |run| run.seq.to_string()))
    }

    async fn list_steps(&self, tenant: TenantId, run: RunId) -> Result<Vec<Step>> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let row = load_row(&mut connection, tenant, run).await?;
        steps_of(&mut connection, &row).await
    }

    async fn request_cancel(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<Cancelled> {
        let (context, reason) = (self.context.clone(), reason.to_owned());
        self.run_to_completion(async move { cancel::cancel_run(&context, tenant, run, &reason).await }).await
    }

    async fn cancel_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        scope: CancelScope,
        reason: &str,
    ) -> Result<CancelledRuns> {
        let (context, reason) = (self.context.clone(), reason.to_owned());
        self.run_to_completion(async move {
            cancel::cancel_session(&context, tenant, session, scope, &reason).await
        })
        .await
    }

    async fn resume_run(&self, tenant: TenantId, run: RunId) -> Result<SessionChange> {
        let context = self.context.clone();
        self.run_to_completion(async move { resume(&context, tenant, run).await }).await
    }

    async fn diagnostics(&self, tenant: TenantId, run: RunId) -> Result<RunDiagnostics> {
        let context = self.context.clone();
        self.run_to_completion(async move { diagnostics(&context, tenant, run).await }).await
    }
}
