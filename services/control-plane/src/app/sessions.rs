//! Creating, reading, changing and deleting sessions.

use std::time::Duration;

use remuda_domain::{
    Code, Error, Pool, SessionId,
    budget::{Limit, Total},
    error::Result,
    execution::ExecutionChoice,
    identity::Principal,
    limits,
    message::Message,
    page::{Page, PageRequest},
    permission::SessionPermissions,
    run::Run,
    session::{Session, SessionRef, SessionStatus},
};
use remuda_store::{CancelScope, NewSession, SessionUpdate};
use tokio::time::Instant;

use super::App;

const DEFAULT_WORKSPACE: &str = "default";
/// How long the deletion of a session waits for its runs to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a new session. Empty texts mean the default.
#[derive(Clone, Debug, Default)]
pub struct SessionSpec {
    pub name: String,
    pub title: String,
    pub workspace: String,
    pub pool: String,
    /// Id or name of the parent session.
    pub parent: String,
    pub execution: ExecutionChoice,
    pub agent: String,
    pub model: String,
    pub permissions: SessionPermissions,
    /// Spending limit of the session and the sessions below it.
    pub budget: Option<Limit>,
}

/// The session settings that a submit requires. Empty fields require nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionRequirements {
    pub execution: ExecutionChoice,
    /// Name of the workspace.
    pub workspace: String,
    pub model: String,
    pub permissions: Option<SessionPermissions>,
}

impl SessionRequirements {
    fn is_empty(&self) -> bool {
        let Self { execution, workspace, model, permissions } = self;
        execution.is_default() && workspace.is_empty() && model.is_empty() && permissions.is_none()
    }
}

/// Whether a session was created with these permissions. Rules added later by decisions with `always` are ignored.
fn created_with(found: &SessionPermissions, required: &SessionPermissions) -> bool {
    let rest = |permissions: &SessionPermissions| {
        (permissions.mode, permissions.unattended, permissions.approvers.clone())
    };
    rest(found) == rest(required) && found.rules.starts_with(&required.rules)
}

/// Checks permissions of a caller. Only operators can lock rules, in the configuration.
fn check_permissions(permissions: &SessionPermissions) -> Result<()> {
    if let Some(index) = permissions.rules.iter().position(|rule| rule.locked) {
        let field = format!("permissions.rules[{index}].locked");
        return Err(Error::invalid(field, "expected no locked rule: only operators lock rules"));
    }
    limits::check_permissions(permissions)
}

/// The error for an existing session with another setting.
fn session_mismatch(field: &str, how: &str) -> Error {
    let message = format!("the session was created {how}: choose another session, or leave this out");
    Error::new(Code::AlreadyExists, message).at(field)
}

/// Renames the field of an error about the parent session.
fn at_parent(error: Error) -> Error {
    if error.field().is_some() { error.at("parent") } else { error }
}

impl App {
    pub async fn create_session(&self, caller: &Principal, spec: SessionSpec) -> Result<Session> {
        if !spec.name.is_empty() {
            limits::check_name("name", &spec.name)?;
        }
        limits::check_text("title", &spec.title, limits::MAX_TITLE_CHARS)?;
        if !spec.agent.is_empty() {
            limits::check_name("agent", &spec.agent)?;
        }
        if !spec.model.is_empty() {
            limits::check_model("model", &spec.model)?;
        }
        check_permissions(&spec.permissions)?;
        spec.budget.map_or(Ok(()), |budget| budget.check("budget"))?;
        let pool = if spec.pool.is_empty() { Pool::default() } else { spec.pool.parse()? };
        let workspace = if spec.workspace.is_empty() { DEFAULT_WORKSPACE } else { &spec.workspace };
        let workspace = self.workspace("workspace", caller, workspace).await?.id;
        self.check_execution(caller, &spec.execution).await?;
        let parent = match spec.parent.as_str() {
            "" => None,
            parent => Some(self.session_id(caller, parent).await.map_err(at_parent)?),
        };
        let session = NewSession {
            id: SessionId::new(),
            tenant: caller.tenant,
            workspace,
            parent,
            name: (!spec.name.is_empty()).then_some(spec.name),
            title: spec.title,
            pool,
            execution: spec.execution,
            agent: (!spec.agent.is_empty()).then_some(spec.agent),
            model: (!spec.model.is_empty()).then_some(spec.model),
            permissions: spec.permissions,
            budget: spec.budget.filter(|limit| !limit.is_none()),
        };
        let app = self.clone();
        self.run_to_completion(async move {
            let changed = app.store.create_session(&session).await?;
            app.announcer.announce_events(session.tenant, session.id, changed.events);
            Ok(changed.value)
        })
        .await
    }

    pub async fn get_session(&self, caller: &Principal, session: &str) -> Result<Session> {
        self.store.get_session(caller.tenant, &limits::parse_session_ref(session)?).await
    }

    /// Resolves a session's id or name to its id. An id is not looked up: later calls find out whether it exists.
    pub(super) async fn session_id(&self, caller: &Principal, session: &str) -> Result<SessionId> {
        match limits::parse_session_ref(session)? {
            SessionRef::Id(id) => Ok(id),
            name @ SessionRef::Name(_) => Ok(self.store.get_session(caller.tenant, &name).await?.id),
        }
    }

    /// Returns the session of that name and creates it if it does not exist. Concurrent callers get the same one.
    pub(super) async fn ensure_session(
        &self,
        caller: &Principal,
        session: &str,
        requirements: &SessionRequirements,
    ) -> Result<SessionId> {
        match self.matching_session(caller, session, requirements).await {
            Err(error) if error.code() == Code::SessionNotFound => {}
            other => return other,
        }
        let SessionRequirements { execution, workspace, model, permissions } = requirements.clone();
        let (name, permissions) = (session.to_owned(), permissions.unwrap_or_default());
        let spec = SessionSpec { name, execution, workspace, model, permissions, ..SessionSpec::default() };
        match Box::pin(self.create_session(caller, spec)).await {
            Ok(created) => Ok(created.id),
            Err(error) if error.code() == Code::AlreadyExists => {
                self.matching_session(caller, session, requirements).await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the session of that name. It must meet the caller's requirements.
    pub(super) async fn matching_session(
        &self,
        caller: &Principal,
        session: &str,
        requirements: &SessionRequirements,
    ) -> Result<SessionId> {
        if requirements.is_empty() {
            return self.session_id(caller, session).await;
        }
        Box::pin(self.check_requirements(caller, session, requirements)).await
    }

    async fn check_requirements(
        &self,
        caller: &Principal,
        session: &str,
        requirements: &SessionRequirements,
    ) -> Result<SessionId> {
        let found = self.get_session(caller, session).await?;
        if !requirements.execution.is_default() && found.execution != requirements.execution {
            return Err(session_mismatch("execution", "with other execution settings"));
        }
        if !requirements.workspace.is_empty()
            && self.workspace("workspace", caller, &requirements.workspace).await?.id != found.workspace
        {
            return Err(session_mismatch("workspace", "in another workspace"));
        }
        if !requirements.model.is_empty() && found.model.as_deref() != Some(requirements.model.as_str()) {
            return Err(session_mismatch("model", "without this model"));
        }
        if let Some(required) = &requirements.permissions
            && !created_with(&found.permissions, required)
        {
            let message = "the session exists with other permissions: change them with UpdateSession, or leave this out";
            return Err(Error::invalid("permissions", message));
        }
        Ok(found.id)
    }

    pub async fn list_sessions(
        &self,
        caller: &Principal,
        status: Option<SessionStatus>,
        page: &PageRequest,
    ) -> Result<Page<Session>> {
        self.store.list_sessions(caller.tenant, status, page).await
    }

    /// Changes the given fields. The model can be changed only before the first run.
    pub async fn update_session(
        &self,
        caller: &Principal,
        session: &str,
        update: SessionUpdate,
    ) -> Result<Session> {
        match &update {
            SessionUpdate { title: None, agent: None, model: None, permissions: None, .. } => {
                let message = "expected a title, an agent, a model or permissions to change";
                return Err(Error::invalid("title", message));
            }
            SessionUpdate { title, agent, model, permissions, .. } => {
                let title = title.as_deref().unwrap_or_default();
                limits::check_text("title", title, limits::MAX_TITLE_CHARS)?;
                agent.as_deref().map_or(Ok(()), |agent| limits::check_name("agent", agent))?;
                model.as_deref().map_or(Ok(()), |model| limits::check_model("model", model))?;
                permissions.as_ref().map_or(Ok(()), check_permissions)?;
            }
        }
        let (app, tenant, session) = (self.clone(), caller.tenant, self.session_id(caller, session).await?);
        self.run_to_completion(async move {
            let changed = app.store.update_session(tenant, session, &update).await?;
            app.announcer.announce_events(tenant, session, changed.events);
            Ok(changed.value)
        })
        .await
    }

    /// The sessions directly below one, oldest first.
    pub async fn list_child_sessions(
        &self,
        caller: &Principal,
        session: &str,
        page: &PageRequest,
    ) -> Result<Page<Session>> {
        let session = self.get_session(caller, session).await?.id;
        self.store.list_child_sessions(caller.tenant, session, page).await
    }

    /// What a session has spent alone, and together with the sessions below it.
    pub async fn session_totals(&self, caller: &Principal, session: SessionId) -> Result<(Total, Total)> {
        self.store.session_totals(caller.tenant, session).await
    }

    /// Closes a session. With `cancel_runs`, its unfinished runs are cancelled too.
    pub async fn close_session(
        &self,
        caller: &Principal,
        session: &str,
        cancel_runs: bool,
    ) -> Result<Session> {
        let (app, caller, id) = (self.clone(), caller.clone(), self.session_id(caller, session).await?);
        self.run_to_completion(async move {
            let changed = app.store.close_session(caller.tenant, id).await?;
            app.announcer.announce_events(caller.tenant, id, changed.events);
            if cancel_runs {
                app.cancel_scope(caller.tenant, id, CancelScope::Session, "the session was closed").await?;
                return app.store.get_session(caller.tenant, &SessionRef::Id(id)).await;
            }
            Ok(changed.value)
        })
        .await
    }

    /// Deletes a session, the sessions below it and all their data. With `cancel_runs`, unfinished runs are cancelled
    /// first; if they do not end soon, this fails with `session_busy`.
    pub async fn delete_session(
        &self,
        caller: &Principal,
        session: &str,
        cancel_runs: bool,
    ) -> Result<Vec<SessionId>> {
        let (app, caller, id) = (self.clone(), caller.clone(), self.session_id(caller, session).await?);
        self.run_to_completion(async move {
            if cancel_runs {
                let reason = "the session is deleted";
                let cancelled = app.cancel_scope(caller.tenant, id, CancelScope::Tree, reason).await?;
                let until = Instant::now() + STOP_TIMEOUT;
                for signal in cancelled.requested {
                    let left = until.saturating_duration_since(Instant::now());
                    app.wait_run(&caller, signal.run, left).await?;
                }
            }
            app.store.delete_session(caller.tenant, id).await
        })
        .await
    }

    pub async fn list_messages(
        &self,
        caller: &Principal,
        session: &str,
        page: &PageRequest,
    ) -> Result<Page<Message>> {
        let session = self.session_id(caller, session).await?;
        self.store.list_messages(caller.tenant, session, page).await
    }

    pub async fn list_queue(
        &self,
        caller: &Principal,
        session: &str,
        page: &PageRequest,
    ) -> Result<Page<Run>> {
        let session = self.get_session(caller, session).await?.id;
        self.store.list_queue(caller.tenant, session, page).await
    }
}
