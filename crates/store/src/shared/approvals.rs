//! Approvals: inserting, deciding and expiring them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use remuda_domain::{
    Appended, ApprovalId, Code, Error, EventBody, RunId, TenantId, Timestamp,
    approval::{Approval, ApprovalState, Decision, DecisionRequest},
    error::Result,
    event::NewEvent,
    identity::Principal,
    limits,
    page::{Page, PageRequest},
    permission::PermissionRule,
};
use sqlx::{AssertSqlSafe, QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    dialect::{self, AMONG_1, Connection, Db, NOW, id_list},
    lock::lock,
    park::ParkedRun,
    placement, sessions,
    store::{Context, SqlStore},
    write_set::WriteSet,
};
use crate::{
    ApprovalFilter, Approvals, DecidedApproval, Reclaimed, SessionChange,
    error::{db, json},
    row_writes::ApprovalInsert,
    rows::{self, ApprovalRow, LockedHead},
};

macro_rules! approval_columns {
    () => {
        "id, tenant_id, session_id, run_id, state, request, decision, created_at, expires_at"
    };
}

fn not_found() -> Error {
    Error::new(Code::ApprovalNotFound, "there is no such approval").at("approval_id")
}

async fn load_row(
    connection: &mut Connection,
    tenant: TenantId,
    approval: ApprovalId,
) -> Result<ApprovalRow> {
    let row: Option<ApprovalRow> =
        query_as(concat!("SELECT ", approval_columns!(), " FROM approvals WHERE id = $1 AND tenant_id = $2"))
            .bind(approval.as_uuid())
            .bind(tenant.as_uuid())
            .fetch_optional(connection)
            .await
            .map_err(db)?;
    row.ok_or_else(not_found)
}

pub(super) async fn insert(connection: &mut Connection, approval: &ApprovalInsert) -> Result<()> {
    query(
        "INSERT INTO approvals (id, tenant_id, session_id, run_id, state, request, created_at, expires_at) \
         VALUES ($1, $2, $3, $4, 'pending', $5, $6, $7)",
    )
    .bind(approval.id)
    .bind(approval.tenant)
    .bind(approval.session)
    .bind(approval.run)
    .bind(approval.request.as_str())
    .bind(approval.created_at)
    .bind(approval.expires_at)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(())
}

/// Stores the final state of an approval and returns its event.
async fn close(connection: &mut Connection, approval: &Approval, at: Timestamp) -> Result<NewEvent> {
    query("UPDATE approvals SET state = $2, decision = $3 WHERE id = $1")
        .bind(approval.id.as_uuid())
        .bind(approval.state.as_str())
        .bind(approval.decision.as_ref().map(json).transpose()?)
        .execute(connection)
        .await
        .map_err(db)?;
    let decision = approval.decision.as_ref();
    let body = EventBody::ApprovalDecided {
        approval: approval.id,
        call: approval.request.call,
        state: approval.state,
        by: decision.map(|decision| decision.by.clone()),
        message: decision.map(|decision| decision.message.clone()).unwrap_or_default(),
    };
    Ok(NewEvent { run: Some(approval.run), at, body })
}

/// Resumes the run of an approval if it is parked and its wait is satisfied.
async fn resume(
    connection: &mut Connection,
    locked: &mut LockedHead,
    run: RunId,
    at: Timestamp,
    writes: &mut WriteSet,
) -> Result<Appended> {
    let Some(waiting) = ParkedRun::load(connection, run.as_uuid()).await? else {
        return Ok(Appended::default());
    };
    if !waiting.is_ready(connection, false).await? {
        return Ok(Appended::default());
    }
    waiting.resume(connection, locked, at, writes).await
}

async fn decide(
    context: &Context,
    caller: &Principal,
    id: ApprovalId,
    answer: &DecisionRequest,
) -> Result<DecidedApproval> {
    let mut tx = dialect::begin(&context.writer).await?;
    let session = load_row(&mut tx, caller.tenant, id).await?.session_id;
    let mut locked = lock(&mut tx, std::iter::once(session)).await?;
    let mut approval = load_row(&mut tx, caller.tenant, id).await?.into_approval()?;
    let at = locked.at;
    approval.check(caller, answer, at)?;
    approval.state = if answer.approve { ApprovalState::Approved } else { ApprovalState::Denied };
    approval.decision = Some(Decision {
        by: caller.subject.clone(),
        at,
        message: answer.message.clone(),
        arguments: answer.arguments.clone(),
        always: answer.always,
    });
    if answer.always {
        allow_always(&mut tx, session, &approval.request.always).await?;
    }
    let head = locked.heads.get_mut(&session).ok_or_else(not_found)?;
    let mut writes = WriteSet::default();
    let decided = close(&mut tx, &approval, at).await?;
    let mut events = writes.append(head, vec![decided])?;
    let resumed = resume(&mut tx, head, approval.run, at, &mut writes).await?;
    let goes_on = !resumed.is_empty();
    events.extend(resumed);
    let change = change_of(head, events, goes_on);
    writes.save_heads(&locked, [session]);
    writes.commit(context, tx).await?;
    Ok(DecidedApproval { approval, change })
}

/// The change of a session with a decided approval. Its run may wait for more approvals.
fn change_of(head: &LockedHead, events: Appended, goes_on: bool) -> SessionChange {
    match goes_on {
        true => placement::session_change(head, events),
        false => placement::events_only(head, events),
    }
}

/// Adds rules to the session's permissions. The caller holds the session's lock.
async fn allow_always(connection: &mut Connection, session: Uuid, always: &[PermissionRule]) -> Result<()> {
    let stored: Option<String> = query_scalar("SELECT permissions FROM sessions WHERE id = $1")
        .bind(session)
        .fetch_one(&mut *connection)
        .await
        .map_err(db)?;
    let mut permissions = rows::permissions(stored.as_deref())?;
    for rule in always {
        // The last matching rule decides, so an earlier copy of the same rule is not enough.
        if permissions.rules.last() != Some(rule) {
            permissions.rules.push(rule.clone());
        }
    }
    if permissions.rules.len() > limits::MAX_RULES {
        let message = format!(
            "the session would have more than {} permission rules: approve without `always`",
            limits::MAX_RULES
        );
        return Err(Error::new(Code::TooLarge, message).at("always"));
    }
    sessions::set_permissions(connection, session, sessions::permissions_to_db(&permissions)?.as_deref())
        .await
}

/// Expires approvals past their deadline. That is not a denial: the run learns that the approval expired.
pub(super) async fn expire(context: &Context, limit: u32) -> Result<Reclaimed> {
    let sql = format!(
        "SELECT id, session_id FROM approvals WHERE state = 'pending' AND expires_at IS NOT NULL \
         AND expires_at <= (SELECT {NOW}) ORDER BY expires_at LIMIT $1"
    );
    let due: Vec<(Uuid, Uuid)> =
        query_as(AssertSqlSafe(sql)).bind(i64::from(limit)).fetch_all(&context.reader).await.map_err(db)?;
    let mut expired = Reclaimed { more: due.len() >= limit as usize, ..Reclaimed::default() };
    if due.is_empty() {
        return Ok(expired);
    }
    let mut tx = dialect::begin(&context.writer).await?;
    let mut locked = lock(&mut tx, due.iter().map(|(_, session)| *session)).await?;
    let ids: Vec<Uuid> = due.iter().map(|(approval, _)| *approval).collect();
    let sql = format!(
        concat!("SELECT ", approval_columns!(), " FROM approvals WHERE id {among} ORDER BY id"),
        among = AMONG_1
    );
    let rows: Vec<ApprovalRow> =
        query_as(AssertSqlSafe(sql)).bind(id_list(&ids)?).fetch_all(&mut *tx).await.map_err(db)?;
    let (at, mut writes) = (locked.at, WriteSet::default());
    let mut changed: BTreeMap<Uuid, (Appended, bool)> = BTreeMap::new();
    for row in rows {
        let session = row.session_id;
        let (approval, head) = (row.into_approval()?, locked.heads.get_mut(&session));
        // It may have been decided meanwhile.
        let Some(head) = head.filter(|_| approval.state == ApprovalState::Pending) else { continue };
        let approval = Approval { state: ApprovalState::Expired, ..approval };
        let closed = close(&mut tx, &approval, at).await?;
        let (events, goes_on) = changed.entry(session).or_default();
        events.extend(writes.append(head, vec![closed])?);
        let resumed = resume(&mut tx, head, approval.run, at, &mut writes).await?;
        *goes_on |= !resumed.is_empty();
        events.extend(resumed);
    }
    writes.save_heads(&locked, changed.keys().copied());
    writes.commit(context, tx).await?;
    for (session, (events, goes_on)) in changed {
        let Some(head) = locked.heads.get(&session) else { continue };
        expired.changes.push(change_of(head, events, goes_on));
    }
    Ok(expired)
}

#[async_trait]
impl Approvals for SqlStore {
    async fn get_approval(&self, tenant: TenantId, approval: ApprovalId) -> Result<Approval> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        load_row(&mut connection, tenant, approval).await?.into_approval()
    }

    async fn list_approvals(
        &self,
        tenant: TenantId,
        filter: &ApprovalFilter,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        let mut sql: QueryBuilder<Db> =
            QueryBuilder::new(concat!("SELECT ", approval_columns!(), " FROM approvals WHERE tenant_id = "));
        sql.push_bind(tenant.as_uuid());
        if let Some(session) = filter.session {
            sql.push(" AND session_id = ").push_bind(session.as_uuid());
        }
        if let Some(run) = filter.run {
            sql.push(" AND run_id = ").push_bind(run.as_uuid());
        }
        if let Some(state) = filter.state {
            // A literal, so that the partial index of pending approvals applies.
            sql.push(format!(" AND state = '{state}'"));
        }
        if let Some(after) = page.after::<ApprovalId>()? {
            sql.push(" AND id < ").push_bind(after.as_uuid());
        }
        sql.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(page.size) + 1);
        let rows: Vec<ApprovalRow> =
            sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        let approvals = rows.into_iter().map(ApprovalRow::into_approval).collect::<Result<Vec<_>>>()?;
        Ok(Page::from_rows(approvals, page.size, |approval| approval.id.to_string()))
    }

    async fn decide(
        &self,
        caller: &Principal,
        approval: ApprovalId,
        answer: &DecisionRequest,
    ) -> Result<DecidedApproval> {
        let (context, caller, answer) = (self.context.clone(), caller.clone(), answer.clone());
        self.run_to_completion(async move { decide(&context, &caller, approval, &answer).await }).await
    }
}
