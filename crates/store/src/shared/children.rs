//! Child runs that a commit of their parent creates.

use std::collections::{HashMap, HashSet};

use remuda_domain::{
    Appended, Code, Error, EventBody, Head, Labels, Run, Timestamp, error::Result, event::NewEvent,
    run::IfBusy,
};
use sqlx::{AssertSqlSafe, query, query_as};
use uuid::Uuid;

use super::{
    dialect::{AMONG_1, Connection, id_list},
    placement, sessions,
    store::Context,
    write_set::WriteSet,
};
use crate::{
    Commit, NewChild, SessionChange,
    error::db,
    row_writes::ChildInsert,
    rows::{self, LockedHead},
    time::DbTime,
};

/// The data needed to create child runs, beside the session heads.
#[derive(Debug, Default)]
pub(super) struct NewChildren {
    /// What children inherit from their parent runs.
    inherited: HashMap<Uuid, Inherited>,
    /// Existing child sessions, with their parents.
    parents: HashMap<Uuid, Option<Uuid>>,
}

/// What a run inherits from its parent run.
#[derive(Clone, Debug, Default)]
struct Inherited {
    budget: Option<Uuid>,
    labels: Labels,
}

impl NewChildren {
    /// Loads what the commits of a batch need, mostly nothing.
    pub(super) async fn load(connection: &mut Connection, batch: &[Commit]) -> Result<Self> {
        let making: Vec<&Commit> = batch.iter().filter(|commit| !commit.children.is_empty()).collect();
        if making.is_empty() {
            return Ok(Self::default());
        }
        let runs: Vec<Uuid> = making.iter().map(|commit| commit.run.as_uuid()).collect();
        let sql = format!("SELECT id, budget_id, labels FROM runs WHERE id {AMONG_1}");
        let runs: Vec<(Uuid, Option<Uuid>, Option<String>)> = query_as(AssertSqlSafe(sql))
            .bind(id_list(&runs)?)
            .fetch_all(&mut *connection)
            .await
            .map_err(db)?;
        let inherited = |(id, budget, labels): (_, _, Option<String>)| {
            Ok((id, Inherited { budget, labels: rows::labels(labels.as_deref())? }))
        };
        let inherited = runs.into_iter().map(inherited).collect::<Result<_>>()?;
        let sessions: Vec<Uuid> = making
            .iter()
            .flat_map(|commit| &commit.children)
            .map(|child| child.run.session.as_uuid())
            .collect();
        let sql = format!("SELECT id, parent_id FROM sessions WHERE id {AMONG_1}");
        let parents: Vec<(Uuid, Option<Uuid>)> =
            query_as(AssertSqlSafe(sql)).bind(id_list(&sessions)?).fetch_all(connection).await.map_err(db)?;
        Ok(Self { inherited, parents: parents.into_iter().collect() })
    }

    /// Fails unless every child can be created. The engine has checked before, so this covers only concurrent changes.
    pub(super) fn check(&self, commit: &Commit, heads: &HashMap<Uuid, LockedHead>) -> Result<()> {
        let mut seen = HashSet::new();
        for child in &commit.children {
            let id = child.run.session.as_uuid();
            if child.new_session.is_some() {
                continue;
            }
            let parent = Some(commit.fence.session.as_uuid());
            let head = heads.get(&id).map(|it| &it.head).filter(|head| {
                head.tenant == commit.fence.tenant
                    && !head.closed
                    && self.parents.get(&id).copied().flatten() == parent
            });
            let missing = || Error::new(Code::TaskNotFound, "there is no such task").at("task_id");
            let head = head.ok_or_else(missing)?;
            if head.pending > 0 || !seen.insert(id) {
                return Err(Error::new(Code::SessionBusy, "the task is still being worked on").at("task_id"));
            }
        }
        Ok(())
    }

    /// Creates the children of a commit that [`NewChildren::check`] has accepted.
    pub(super) fn create(
        &self,
        context: &Context,
        commit: &Commit,
        heads: &mut HashMap<Uuid, LockedHead>,
        at: Timestamp,
        writes: &mut WriteSet,
    ) -> Result<Vec<SessionChange>> {
        let Inherited { budget, labels } =
            self.inherited.get(&commit.run.as_uuid()).cloned().unwrap_or_default();
        let mut changes = Vec::with_capacity(commit.children.len());
        for child in &commit.children {
            let mut created = Vec::new();
            if let Some(row) = new_session(commit, child, at)? {
                let parent = heads.get(&commit.fence.session.as_uuid());
                let parent =
                    parent.ok_or_else(|| Error::internal("child run without its parent's session"))?;
                let head = Head::new(parent.head.tenant, child.run.session, parent.head.pool.clone());
                heads.insert(
                    row.id,
                    LockedHead {
                        head,
                        current_started_at: None,
                        has_related: true,
                        version: 0,
                        granted_to: None,
                    },
                );
                writes.sessions.push(row);
                created.push(NewEvent { run: None, at, body: EventBody::SessionCreated });
            }
            if let Some(permissions) = &child.permissions {
                writes
                    .permissions
                    .push((child.run.session.as_uuid(), sessions::permissions_to_db(permissions)?));
            }
            let locked = heads.get_mut(&child.run.session.as_uuid());
            let locked = locked.ok_or_else(|| Error::internal("child run without its session"))?;
            writes.mark_related(locked);
            let seq = locked.head.admit(IfBusy::Enqueue, context.max_pending)?;
            let run = Run {
                tenant: commit.fence.tenant,
                seq,
                created_at: at,
                parent: Some(commit.run),
                labels: labels.clone(),
                ..child.run.clone()
            };
            let events = writes.queue(&run, budget, locked, created)?;
            changes.push(placement::session_change(locked, events));
        }
        Ok(changes)
    }
}

/// The child sessions of a repeated commit: the first response, and with it the wake-up, may have been lost.
pub(super) fn wake_again(commit: &Commit, heads: &HashMap<Uuid, LockedHead>) -> Vec<SessionChange> {
    let heads = commit.children.iter().filter_map(|child| heads.get(&child.run.session.as_uuid()));
    heads.map(|head| placement::session_change(head, Appended::default())).collect()
}

fn new_session(commit: &Commit, child: &NewChild, at: Timestamp) -> Result<Option<ChildInsert>> {
    let Some(new) = &child.new_session else { return Ok(None) };
    let permissions = sessions::permissions_to_db(&new.permissions)?;
    Ok(Some(ChildInsert {
        id: child.run.session.as_uuid(),
        parent: commit.fence.session.as_uuid(),
        title: new.title.clone(),
        agent: new.agent.clone(),
        model: new.model.clone(),
        permissions,
        created_at: DbTime(at),
    }))
}

/// Inserts a child session. It inherits workspace, pool, execution and budget from its parent.
pub(super) async fn insert_session(connection: &mut Connection, session: &ChildInsert) -> Result<()> {
    query(
        "INSERT INTO sessions (id, tenant_id, workspace_id, title, pool, created_at, parent_id, execution, agent, model, \
         permissions, depth, budget_id, ties) SELECT $1, p.tenant_id, p.workspace_id, $3, p.pool, $4, p.id, p.execution, $5, \
         $6, $7, p.depth + 1, p.budget_id, $8 FROM sessions p WHERE p.id = $2",
    )
    .bind(session.id)
    .bind(session.parent)
    .bind(session.title.as_str())
    .bind(session.created_at)
    .bind(session.agent.as_str())
    .bind(session.model.as_deref())
    .bind(session.permissions.as_deref())
    .bind(true)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(())
}
