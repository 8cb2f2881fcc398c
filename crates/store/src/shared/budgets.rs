//! Budgets: reservations, and setting limits.

use std::collections::HashSet;

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, EventBody, Fence, RunId, StepId, TenantId,
    budget::{Amount, Limit},
    error::Result,
    event::NewEvent,
};
use sqlx::{AssertSqlSafe, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, id_list},
    lock::lock,
    placement, resume,
    runs::run_not_found,
    spending,
    store::{Context, SqlStore},
    submit::session_not_found,
    totals::{self, RUNS_BELOW, SESSIONS_BELOW},
    write_set::WriteSet,
};
use crate::{
    BudgetChange, BudgetTarget, Budgets, Reserved,
    coalesce::retry_on_conflict,
    error::{conflict, db},
    row_writes::BudgetInsert,
    rows::{amount_to_db, count_to_db},
};

async fn reserve(
    context: &Context,
    fence: &Fence,
    run: RunId,
    step: StepId,
    amount: Amount,
) -> Result<Reserved> {
    let mut tx = dialect::begin(&context.writer).await?;
    let session = fence.session.as_uuid();
    let mut locked = lock(&mut tx, std::iter::once(session)).await?;
    let lost = || Error::new(Code::OwnershipLost, "the run is no longer the session's current one");
    let head = locked.heads.get_mut(&session).ok_or_else(lost)?;
    head.head.verify(fence)?;
    if head.head.current != Some(run) {
        return Err(lost());
    }
    let ids = spending::covering_budgets(&mut tx, &[run.as_uuid()]).await?;
    if ids.is_empty() {
        return Ok(Reserved::Held);
    }
    dialect::lock_budgets(&mut tx, &ids).await?;
    // A run makes one model call at a time: an older reservation is obsolete, even if the new one does not fit.
    query("DELETE FROM reservations WHERE run_id = $1")
        .bind(run.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(db)?;
    let budgets = spending::load(&mut tx, &ids).await?;
    if let Some(full) = ids.iter().filter_map(|id| budgets.get(id)).find(|budget| !budget.has_room(amount)) {
        tx.commit().await.map_err(db)?;
        return Ok(Reserved::Refused(*full));
    }
    let (tokens, micros) = amount_to_db(amount);
    for budget in ids {
        query("INSERT INTO reservations (step_id, budget_id, run_id, tokens, micros) VALUES ($1, $2, $3, $4, $5)")
            .bind(step.as_uuid())
            .bind(budget)
            .bind(run.as_uuid())
            .bind(tokens)
            .bind(micros)
            .execute(&mut *tx)
            .await
            .map_err(db)?;
    }
    let mut writes = WriteSet::default();
    writes.mark_related(head);
    writes.commit(context, tx).await?;
    Ok(Reserved::Held)
}

/// The target of a budget, loaded under its session's lock.
struct Subject {
    tenant: TenantId,
    target: BudgetTarget,
    id: Uuid,
    session: Uuid,
    /// The nearest budget that covers it: its own, or one of an ancestor.
    covered_by: Option<Uuid>,
}

impl Subject {
    async fn load(connection: &mut Connection, tenant: TenantId, target: BudgetTarget) -> Result<Self> {
        let (id, session, covered_by) = match target {
            BudgetTarget::Run(run) => {
                let found: Option<(Uuid, i16, Option<Uuid>)> = query_as(
                    "SELECT session_id, state, budget_id FROM runs WHERE id = $1 AND tenant_id = $2",
                )
                .bind(run.as_uuid())
                .bind(tenant.as_uuid())
                .fetch_optional(connection)
                .await
                .map_err(db)?;
                let (session, state, budget) = found.ok_or_else(run_not_found)?;
                if state >= 10 {
                    let message = "the run has ended, so its budget cannot change";
                    return Err(Error::new(Code::NotParked, message).at("run_id"));
                }
                (run.as_uuid(), session, budget)
            }
            BudgetTarget::Session(session) => {
                let found: Option<(Uuid, Option<Uuid>)> =
                    query_as("SELECT id, budget_id FROM sessions WHERE id = $1 AND tenant_id = $2")
                        .bind(session.as_uuid())
                        .bind(tenant.as_uuid())
                        .fetch_optional(connection)
                        .await
                        .map_err(db)?;
                let (session, budget) = found.ok_or_else(session_not_found)?;
                (session, session, budget)
            }
        };
        Ok(Self { tenant, target, id, session, covered_by })
    }

    fn has_own(&self) -> bool {
        self.covered_by == Some(self.id)
    }

    const fn run(&self) -> Option<RunId> {
        match self.target {
            BudgetTarget::Run(run) => Some(run),
            BudgetTarget::Session(_) => None,
        }
    }

    /// The sessions to lock: the target's own, and those of all descendants if a new budget will cover them.
    async fn sessions(&self, connection: &mut Connection) -> Result<HashSet<Uuid>> {
        if self.has_own() {
            return Ok(HashSet::from([self.session]));
        }
        let sql = match self.target {
            BudgetTarget::Run(_) => {
                format!("{RUNS_BELOW} SELECT DISTINCT r.session_id FROM tree t JOIN runs r ON r.id = t.id")
            }
            BudgetTarget::Session(_) => format!("{SESSIONS_BELOW} SELECT id FROM tree"),
        };
        let sessions: Vec<Uuid> = query_scalar(AssertSqlSafe(sql))
            .bind(self.id)
            .bind(self.tenant.as_uuid())
            .fetch_all(connection)
            .await
            .map_err(db)?;
        Ok(sessions.into_iter().collect())
    }

    async fn change(&self, connection: &mut Connection, limit: Limit) -> Result<()> {
        dialect::lock_budgets(connection, &[self.id]).await?;
        query("UPDATE budgets SET limit_tokens = $2, limit_micros = $3 WHERE id = $1")
            .bind(self.id)
            .bind(limit.tokens.map(count_to_db))
            .bind(limit.micros.map(count_to_db))
            .execute(connection)
            .await
            .map_err(db)?;
        Ok(())
    }

    /// Creates a budget with the spending so far, and inserts it between its members and the budget that covered them
    /// before.
    async fn make(&self, connection: &mut Connection, limit: Limit) -> Result<()> {
        let (total, tree, table) = match self.target {
            BudgetTarget::Run(run) => {
                (totals::run_tree(connection, self.tenant, run).await?, RUNS_BELOW, "runs")
            }
            BudgetTarget::Session(session) => {
                let total = totals::session_tree(connection, self.tenant, session).await?;
                (total, SESSIONS_BELOW, "sessions")
            }
        };
        let members: Vec<Uuid> = query_scalar(AssertSqlSafe(format!("{tree} SELECT id FROM tree")))
            .bind(self.id)
            .bind(self.tenant.as_uuid())
            .fetch_all(&mut *connection)
            .await
            .map_err(db)?;
        let unfinished = if table == "runs" { "AND state + 0 < 10" } else { "" };
        for sql in [
            format!(
                "UPDATE {table} SET budget_id = $2 \
                 WHERE id {AMONG_1} AND budget_id IS NOT DISTINCT FROM $3 {unfinished}"
            ),
            format!(
                "UPDATE budgets SET parent_id = $2 WHERE id {AMONG_1} AND parent_id IS NOT DISTINCT FROM $3"
            ),
        ] {
            query(AssertSqlSafe(sql))
                .bind(id_list(&members)?)
                .bind(self.id)
                .bind(self.covered_by)
                .execute(&mut *connection)
                .await
                .map_err(db)?;
        }
        let (tenant, parent) = (self.tenant.as_uuid(), self.covered_by);
        let budget = BudgetInsert { id: self.id, tenant, parent, limit, spent: totals::counted(&total) };
        spending::insert_budget(connection, &budget).await
    }
}

/// Writes the limit. A budget covers runs of other sessions too: to create one, all these sessions are locked, so that
/// their runs cannot spend or create children meanwhile.
async fn write_limit(
    context: &Context,
    tenant: TenantId,
    target: BudgetTarget,
    limit: Limit,
) -> Result<(BudgetChange, Uuid)> {
    let mut tx = dialect::begin(&context.writer).await?;
    let before = Subject::load(&mut tx, tenant, target).await?;
    let sessions = before.sessions(&mut tx).await?;
    let mut locked = lock(&mut tx, sessions.iter().copied()).await?;
    let subject = Subject::load(&mut tx, tenant, target).await?;
    if subject.covered_by != before.covered_by || subject.sessions(&mut tx).await? != sessions {
        return Err(conflict());
    }
    match subject.has_own() {
        true => subject.change(&mut tx, limit).await?,
        false => subject.make(&mut tx, limit).await?,
    }
    let budget = spending::load(&mut tx, &[subject.id]).await?.remove(&subject.id);
    let budget = budget.ok_or_else(|| Error::internal("budget not found after it was written"))?;
    let at = locked.at;
    let head = locked.heads.get_mut(&subject.session).ok_or_else(session_not_found)?;
    let mut writes = WriteSet::default();
    let body = EventBody::BudgetChanged { budget };
    let events = writes.append(head, vec![NewEvent { run: subject.run(), at, body }])?;
    let change = placement::events_only(head, events);
    writes.save_heads(&locked, [subject.session]);
    writes.commit(context, tx).await?;
    Ok((BudgetChange { budget, resumed: Vec::new(), changes: vec![change] }, subject.id))
}

async fn set(
    context: &Context,
    tenant: TenantId,
    target: BudgetTarget,
    limit: Limit,
) -> Result<BudgetChange> {
    let (mut changed, id) = retry_on_conflict(|| write_limit(context, tenant, target, limit)).await?;
    for (run, change) in resume::resume_after_raise(context, id).await {
        changed.resumed.push(run);
        changed.changes.push(change);
    }
    Ok(changed)
}

#[async_trait]
impl Budgets for SqlStore {
    async fn reserve(&self, fence: Fence, run: RunId, step: StepId, amount: Amount) -> Result<Reserved> {
        let context = self.context.clone();
        let reserved =
            self.run_to_completion(async move { reserve(&context, &fence, run, step, amount).await }).await;
        self.context.meters.count_fenced(reserved)
    }

    async fn set_budget(&self, tenant: TenantId, target: BudgetTarget, limit: Limit) -> Result<BudgetChange> {
        let context = self.context.clone();
        self.run_to_completion(async move { set(&context, tenant, target, limit).await }).await
    }
}
