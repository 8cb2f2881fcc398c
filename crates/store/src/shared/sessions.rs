//! Sessions, workspaces, transcripts and stored contents.

use async_trait::async_trait;
use remuda_domain::{
    Appended, Code, Error, EventBody, SessionId, TenantId, WorkspaceId,
    budget::Amount,
    content::ContentHash,
    error::Result,
    event::NewEvent,
    message::Message,
    page::{Page, PageRequest},
    permission::SessionPermissions,
    session::{Session, SessionRef, SessionStatus, Workspace},
};
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::{
    delete,
    dialect::{self, Connection, Db},
    lock::lock,
    spending,
    store::{Context, SqlStore},
    submit::session_not_found,
    write_set::WriteSet,
};
use crate::{
    Changed, NewSession, NewWorkspace, SessionUpdate, Sessions,
    error::{db, is_duplicate, json, parse},
    row_writes::BudgetInsert,
    rows::{MessageRow, NamedWorkspaceRow, SessionRow, WorkspaceRow},
    time::{DbTime, now},
};

async fn load(connection: &mut Connection, tenant: TenantId, session: &SessionRef) -> Result<Session> {
    let row = load_row(connection, tenant, session).await?;
    with_budgets(connection, vec![row]).await?.pop().ok_or_else(session_not_found)
}

/// Converts rows to sessions with their own budgets. Runs no query if there are none.
pub(super) async fn with_budgets(connection: &mut Connection, rows: Vec<SessionRow>) -> Result<Vec<Session>> {
    let own: Vec<Uuid> = rows.iter().filter(|row| row.has_budget()).map(|row| row.id).collect();
    let budgets = spending::load(connection, &own).await?;
    let session =
        |row: SessionRow| Ok(Session { budget: budgets.get(&row.id).copied(), ..row.into_session()? });
    rows.into_iter().map(session).collect()
}

async fn load_row(connection: &mut Connection, tenant: TenantId, session: &SessionRef) -> Result<SessionRow> {
    let row: Option<SessionRow> = match session {
        SessionRef::Id(id) => query_as(concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions WHERE id = $1 AND tenant_id = $2"
        ))
        .bind(id.as_uuid())
        .bind(tenant.as_uuid())
        .fetch_optional(&mut *connection)
        .await
        .map_err(db)?,
        SessionRef::Name(name) => query_as(concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions WHERE name = $1 AND tenant_id = $2"
        ))
        .bind(name.as_str())
        .bind(tenant.as_uuid())
        .fetch_optional(connection)
        .await
        .map_err(db)?,
    };
    row.ok_or_else(session_not_found)
}

fn workspace_not_found() -> Error {
    Error::new(Code::WorkspaceNotFound, "there is no such workspace")
}

async fn create(context: &Context, session: &NewSession) -> Result<Changed<Session>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let at = now();
    let (mut depth, mut budget_id) = (0, None);
    if let Some(parent) = session.parent {
        // Locked, so that its budget does not change before the child session exists.
        lock(&mut tx, std::iter::once(parent.as_uuid())).await?;
        let parent = load_row(&mut tx, session.tenant, &SessionRef::Id(parent)).await;
        let not_found = |error: Error| match error.code() {
            Code::SessionNotFound => error.at("parent"),
            _ => error,
        };
        let parent = parent.map_err(not_found)?;
        (depth, budget_id) = (parent.depth + 1, parent.budget_id);
    }
    let budget = session.budget.map(|limit| BudgetInsert {
        id: session.id.as_uuid(),
        tenant: session.tenant.as_uuid(),
        parent: budget_id,
        limit,
        spent: Amount::default(),
    });
    let permissions = permissions_to_db(&session.permissions)?;
    let execution = if session.execution.is_default() { None } else { Some(json(&session.execution)?) };
    let inserted = query(
        "INSERT INTO sessions (id, tenant_id, workspace_id, name, title, pool, created_at, parent_id, execution, \
         agent, model, permissions, depth, budget_id) SELECT $1, w.tenant_id, w.id, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
         $13, $14 FROM workspaces w WHERE w.id = $3 AND w.tenant_id = $2",
    )
    .bind(session.id.as_uuid())
    .bind(session.tenant.as_uuid())
    .bind(session.workspace.as_uuid())
    .bind(session.name.as_deref())
    .bind(session.title.as_str())
    .bind(session.pool.as_str())
    .bind(DbTime(at))
    .bind(session.parent.map(SessionId::as_uuid))
    .bind(execution)
    .bind(session.agent.as_deref())
    .bind(session.model.as_deref())
    .bind(permissions)
    .bind(depth)
    .bind(budget.as_ref().map(|budget| budget.id).or(budget_id))
    .execute(&mut *tx)
    .await;
    match inserted {
        Err(error) if is_duplicate(&error) => {
            return Err(Error::new(Code::AlreadyExists, "a session with that name exists").at("name"));
        }
        Ok(done) if done.rows_affected() == 0 => return Err(workspace_not_found()),
        other => other.map_err(db)?,
    };
    if let Some(budget) = &budget {
        spending::insert_budget(&mut tx, budget).await?;
    }
    let body = EventBody::SessionCreated;
    let changed = record(&mut tx, session.tenant, session.id, body).await?;
    tx.commit().await.map_err(db)?;
    Ok(changed)
}

/// Permissions as stored: `None` for the default.
pub(super) fn permissions_to_db(permissions: &SessionPermissions) -> Result<Option<String>> {
    if permissions.is_default() { Ok(None) } else { json(permissions).map(Some) }
}

pub(super) async fn set_permissions(
    connection: &mut Connection,
    session: Uuid,
    permissions: Option<&str>,
) -> Result<()> {
    query("UPDATE sessions SET permissions = $2 WHERE id = $1")
        .bind(session)
        .bind(permissions)
        .execute(connection)
        .await
        .map_err(db)?;
    Ok(())
}

/// Appends an event of the session and returns the session.
async fn record(
    connection: &mut Connection,
    tenant: TenantId,
    session: SessionId,
    body: EventBody,
) -> Result<Changed<Session>> {
    let mut locked = lock(connection, std::iter::once(session.as_uuid())).await?;
    let head = locked.heads.get_mut(&session.as_uuid()).ok_or_else(session_not_found)?;
    let mut writes = WriteSet::default();
    let events = writes.append(head, vec![NewEvent { run: None, at: locked.at, body }])?;
    writes.save_heads(&locked, [session.as_uuid()]);
    writes.write(connection).await?;
    let value = load(connection, tenant, &SessionRef::Id(session)).await?;
    Ok(Changed { value, events })
}

async fn update(
    context: &Context,
    tenant: TenantId,
    session: SessionId,
    update: &SessionUpdate,
) -> Result<Changed<Session>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let locked = lock(&mut tx, std::iter::once(session.as_uuid())).await?;
    let found = load(&mut tx, tenant, &SessionRef::Id(session)).await?;
    if !update.if_revision.is_empty() && !update.if_revision.contains(&found.revision()) {
        let message = "the session was changed since you read it: read it again, then retry";
        return Err(Error::new(Code::PreconditionFailed, message).at("if_revision"));
    }
    let used = locked.heads.get(&session.as_uuid()).is_some_and(|it| it.head.last_seq > 0);
    if used && update.model.is_some() && update.model != found.model {
        let message = "the session has runs, so its model cannot change: use another session";
        return Err(Error::new(Code::SessionModelLocked, message).at("model"));
    }
    query(
        "UPDATE sessions SET title = coalesce($3, title), agent = coalesce($4, agent), model = coalesce($5, model), \
         permissions = CASE WHEN $6 THEN $7 ELSE permissions END WHERE id = $1 AND tenant_id = $2",
    )
    .bind(session.as_uuid())
    .bind(tenant.as_uuid())
    .bind(update.title.as_deref())
    .bind(update.agent.as_deref())
    .bind(update.model.as_deref())
    .bind(update.permissions.is_some())
    .bind(update.permissions.as_ref().map(permissions_to_db).transpose()?.flatten())
    .execute(&mut *tx)
    .await
    .map_err(db)?;
    let changed = record(&mut tx, tenant, session, EventBody::SessionUpdated).await?;
    tx.commit().await.map_err(db)?;
    Ok(changed)
}

async fn close(context: &Context, tenant: TenantId, session: SessionId) -> Result<Changed<Session>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let closed =
        query("UPDATE sessions SET closed = TRUE, version = version + 1 WHERE id = $1 AND tenant_id = $2 AND closed = FALSE")
            .bind(session.as_uuid())
            .bind(tenant.as_uuid())
            .execute(&mut *tx)
            .await
            .map_err(db)?;
    let changed = if closed.rows_affected() == 1 {
        record(&mut tx, tenant, session, EventBody::SessionClosed).await?
    } else {
        let value = load(&mut tx, tenant, &SessionRef::Id(session)).await?;
        Changed { value, events: Appended::default() }
    };
    tx.commit().await.map_err(db)?;
    Ok(changed)
}

async fn create_workspace(context: &Context, new: NewWorkspace) -> Result<Workspace> {
    let mut tx = dialect::begin(&context.writer).await?;
    let at = now();
    let inserted =
        query("INSERT INTO workspaces (id, tenant_id, name, root, created_at) VALUES ($1, $2, $3, $4, $5)")
            .bind(new.id.as_uuid())
            .bind(new.tenant.as_uuid())
            .bind(new.name.as_str())
            .bind(new.root.as_str())
            .bind(DbTime(at))
            .execute(&mut *tx)
            .await;
    match inserted {
        Err(error) if is_duplicate(&error) => {
            return Err(Error::new(Code::AlreadyExists, "a workspace with that name exists").at("name"));
        }
        other => other.map_err(db)?,
    };
    tx.commit().await.map_err(db)?;
    Ok(Workspace { id: new.id, tenant: new.tenant, name: new.name, root: new.root, created_at: at })
}

#[async_trait]
impl Sessions for SqlStore {
    async fn find_workspace(&self, tenant: TenantId, name: &str) -> Result<Option<Workspace>> {
        let row: Option<WorkspaceRow> = query_as(
            "SELECT id, tenant_id, name, root, created_at FROM workspaces WHERE tenant_id = $1 AND name = $2",
        )
        .bind(tenant.as_uuid())
        .bind(name)
        .fetch_optional(&self.context.reader)
        .await
        .map_err(db)?;
        Ok(row.map(Into::into))
    }

    async fn get_workspace(&self, tenant: TenantId, workspace: WorkspaceId) -> Result<Workspace> {
        let row: Option<WorkspaceRow> = query_as(
            "SELECT id, tenant_id, name, root, created_at FROM workspaces WHERE tenant_id = $1 AND id = $2",
        )
        .bind(tenant.as_uuid())
        .bind(workspace.as_uuid())
        .fetch_optional(&self.context.reader)
        .await
        .map_err(db)?;
        row.map(Into::into).ok_or_else(workspace_not_found)
    }

    async fn create_session(&self, session: &NewSession) -> Result<Changed<Session>> {
        let (context, session) = (self.context.clone(), session.clone());
        self.run_to_completion(async move { create(&context, &session).await }).await
    }

    async fn get_session(&self, tenant: TenantId, session: &SessionRef) -> Result<Session> {
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        load(&mut connection, tenant, session).await
    }

    async fn list_sessions(
        &self,
        tenant: TenantId,
        status: Option<SessionStatus>,
        page: &PageRequest,
    ) -> Result<Page<Session>> {
        let mut sql: QueryBuilder<Db> =
            QueryBuilder::new(concat!("SELECT ", session_columns!(), " FROM sessions WHERE tenant_id = "));
        sql.push_bind(tenant.as_uuid());
        if let Some(status) = status {
            sql.push(" AND closed = ").push_bind(status == SessionStatus::Closed);
        }
        if let Some(after) = page.after::<SessionId>()? {
            sql.push(" AND id < ").push_bind(after.as_uuid());
        }
        sql.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(page.size) + 1);
        let mut connection = self.context.reader.acquire().await.map_err(db)?;
        let rows: Vec<SessionRow> = sql.build_query_as().fetch_all(&mut *connection).await.map_err(db)?;
        let sessions = with_budgets(&mut connection, rows).await?;
        Ok(Page::from_rows(sessions, page.size, |session| session.id.to_string()))
    }

    async fn update_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        changes: &SessionUpdate,
    ) -> Result<Changed<Session>> {
        let (context, changes) = (self.context.clone(), changes.clone());
        self.run_to_completion(async move { update(&context, tenant, session, &changes).await }).await
    }

    async fn close_session(&self, tenant: TenantId, session: SessionId) -> Result<Changed<Session>> {
        let context = self.context.clone();
        self.run_to_completion(async move { close(&context, tenant, session).await }).await
    }

    async fn delete_session(&self, tenant: TenantId, session: SessionId) -> Result<Vec<SessionId>> {
        let context = self.context.clone();
        self.run_to_completion(async move { delete::delete(&context, tenant, session).await }).await
    }

    async fn list_messages(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Message>> {
        self.get_session(tenant, &SessionRef::Id(session)).await?;
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(
            "SELECT id, session_id, run_id, role, agent, parts, created_at FROM messages WHERE session_id = ",
        );
        sql.push_bind(session.as_uuid());
        if let Some(after) = page.after::<remuda_domain::MessageId>()? {
            sql.push(" AND (position, ordinal, id) > (SELECT position, ordinal, id FROM messages WHERE session_id = ")
                .push_bind(session.as_uuid())
                .push(" AND id = ")
                .push_bind(after.as_uuid())
                .push(")");
        }
        sql.push(" ORDER BY position, ordinal, id LIMIT ").push_bind(i64::from(page.size) + 1);
        let rows: Vec<MessageRow> = sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        let messages = rows.into_iter().map(MessageRow::into_message).collect::<Result<Vec<_>>>()?;
        Ok(Page::from_rows(messages, page.size, |message| message.id.to_string()))
    }

    async fn get_content(&self, tenant: TenantId, hash: ContentHash) -> Result<Option<String>> {
        let body: Option<String> =
            query_scalar("SELECT body FROM contents WHERE tenant_id = $1 AND hash = $2")
                .bind(tenant.as_uuid())
                .bind(hash.as_bytes().as_slice())
                .fetch_optional(&self.context.reader)
                .await
                .map_err(db)?;
        body.map(|body| parse("content", &body)).transpose()
    }

    async fn create_workspace(&self, workspace: &NewWorkspace) -> Result<Workspace> {
        let (context, new) = (self.context.clone(), workspace.clone());
        self.run_to_completion(async move { create_workspace(&context, new).await }).await
    }

    async fn list_all_workspaces(
        &self,
        after: Option<WorkspaceId>,
        limit: u32,
    ) -> Result<Vec<(String, Workspace)>> {
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(
            "SELECT w.id, w.tenant_id, w.name, w.root, w.created_at, t.name AS tenant \
             FROM workspaces w JOIN tenants t ON t.id = w.tenant_id",
        );
        if let Some(after) = after {
            sql.push(" WHERE w.id > ").push_bind(after.as_uuid());
        }
        sql.push(" ORDER BY w.id LIMIT ").push_bind(i64::from(limit));
        let rows: Vec<NamedWorkspaceRow> =
            sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        Ok(rows.into_iter().map(|row| (row.tenant, row.workspace.into())).collect())
    }

    async fn list_workspaces(&self, tenant: TenantId, page: &PageRequest) -> Result<Page<Workspace>> {
        let mut sql: QueryBuilder<Db> = QueryBuilder::new(
            "SELECT id, tenant_id, name, root, created_at FROM workspaces WHERE tenant_id = ",
        );
        sql.push_bind(tenant.as_uuid());
        if let Some(after) = page.after::<String>()? {
            sql.push(" AND name > ").push_bind(after);
        }
        sql.push(" ORDER BY name LIMIT ").push_bind(i64::from(page.size) + 1);
        let rows: Vec<WorkspaceRow> =
            sql.build_query_as().fetch_all(&self.context.reader).await.map_err(db)?;
        let workspaces = rows.into_iter().map(Into::into).collect();
        Ok(Page::from_rows(workspaces, page.size, |workspace: &Workspace| workspace.name.clone()))
    }
}
