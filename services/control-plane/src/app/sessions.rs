//! Sessions.

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
use remuda_store::{NewSession, Reach, SessionUpdate};
use tokio::time::Instant;

use super::App;

const DEFAULT_WORKSPACE: &str = "default";
/// How long a session that is deleted waits for its runs to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// What a caller says of a new session. Empty texts mean the default.
#[derive(Clone, Debug, Default)]
pub struct SessionSpec {
    pub name: String,
    pub title: String,
    pub workspace: String,
    pub pool: String,
    /// Id or name of the session that this one works for.
    pub parent: String,
    pub execution: ExecutionChoice,
    pub agent: String,
    pub model: String,
    pub permissions: SessionPermissions,
    /// How much it and the sessions below it may spend.
    pub budget: Option<Limit>,
}

/// How a submit wants its session to be made. What is empty is not asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Making {
    pub execution: ExecutionChoice,
    /// Name of the workspace.
    pub workspace: String,
    pub model: String,
    pub permissions: Option<SessionPermissions>,
}

impl Making {
    fn says_nothing(&self) -> bool {
        let Self { execution, workspace, model, permissions } = self;
        execution.is_default() && workspace.is_empty() && model.is_empty() && permissions.is_none()
    }
}

/// Whether a session was made with these permissions. Rules that people answered `always` with came later.
fn made_with(found: &SessionPermissions, said: &SessionPermissions) -> bool {
    let rest = |permissions: &SessionPermissions| {
        (permissions.mode, permissions.unattended, permissions.approvers.clone())
    };
    rest(found) == rest(said) && found.rules.starts_with(&said.rules)
}

/// Operators lock rules, in the configuration; callers cannot.
fn check_permissions(permissions: &SessionPermissions) -> Result<()> {
    if let Some(index) = permissions.rules.iter().position(|rule| rule.locked) {
        let field = format!("permissions.rules[{index}].locked");
        return Err(Error::invalid(field, "expected no locked rule: only operators lock rules"));
    }
    limits::check_permissions(permissions)
}

/// A session that exists was made otherwise.
fn made_otherwise(field: &str, how: &str) -> Error {
    let message = format!("the session was made {how}: choose another session, or leave this out");
    Error::new(Code::AlreadyExists, message).at(field)
}

/// The field that names a session is another one here.
fn of_parent(error: Error) -> Error {
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
            parent => Some(self.session_id(caller, parent).await.map_err(of_parent)?),
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
        self.to_the_end(async move {
            let changed = app.store.create_session(&session).await?;
            app.waker.announce_events(session.tenant, session.id, changed.events);
            Ok(changed.value)
        })
        .await
    }

    pub async fn get_session(&self, caller: &Principal, session: &str) -> Result<Session> {
        self.store.get_session(caller.tenant, &limits::parse_session_ref(session)?).await
    }

    /// The id behind a session's id or name. An id is not looked up: whoever uses it finds out whether it exists.
    pub(super) async fn session_id(&self, caller: &Principal, session: &str) -> Result<SessionId> {
        match limits::parse_session_ref(session)? {
            SessionRef::Id(id) => Ok(id),
            name @ SessionRef::Name(_) => Ok(self.store.get_session(caller.tenant, &name).await?.id),
        }
    }

    /// The session of that name, created when it does not exist. Two callers at once get the same one.
    pub(super) async fn ensure_session(
        &self,
        caller: &Principal,
        session: &str,
        making: &Making,
    ) -> Result<SessionId> {
        match self.session_like(caller, session, making).await {
            Err(error) if error.code() == Code::SessionNotFound => {}
            other => return other,
        }
        let Making { execution, workspace, model, permissions } = making.clone();
        let (name, permissions) = (session.to_owned(), permissions.unwrap_or_default());
        let spec = SessionSpec { name, execution, workspace, model, permissions, ..SessionSpec::default() };
        match Box::pin(self.create_session(caller, spec)).await {
            Ok(created) => Ok(created.id),
            Err(error) if error.code() == Code::AlreadyExists => {
                self.session_like(caller, session, making).await
            }
            Err(error) => Err(error),
        }
    }

    /// The session of that name, which must have been made as the caller wants it, as far as that was said.
    pub(super) async fn session_like(
        &self,
        caller: &Principal,
        session: &str,
        making: &Making,
    ) -> Result<SessionId> {
        if making.says_nothing() {
            return self.session_id(caller, session).await;
        }
        Box::pin(self.session_made_like(caller, session, making)).await
    }

    async fn session_made_like(
        &self,
        caller: &Principal,
        session: &str,
        making: &Making,
    ) -> Result<SessionId> {
        let found = self.get_session(caller, session).await?;
        if !making.execution.is_default() && found.execution != making.execution {
            return Err(made_otherwise("execution", "to execute elsewhere"));
        }
        if !making.workspace.is_empty()
            && self.workspace("workspace", caller, &making.workspace).await?.id != found.workspace
        {
            return Err(made_otherwise("workspace", "in another workspace"));
        }
        if !making.model.is_empty() && found.model.as_deref() != Some(making.model.as_str()) {
            return Err(made_otherwise("model", "without this model"));
        }
        if let Some(said) = &making.permissions
            && !made_with(&found.permissions, said)
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

    /// Changes what is given. The model stays once the session has runs.
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
        self.to_the_end(async move {
            let changed = app.store.update_session(tenant, session, &update).await?;
            app.waker.announce_events(tenant, session, changed.events);
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

    /// What a session has spent, and what it and the sessions below it have.
    pub async fn session_totals(&self, caller: &Principal, session: SessionId) -> Result<(Total, Total)> {
        self.store.session_totals(caller.tenant, session).await
    }

    /// Closes a session. With `cancel_runs`, what waits or executes is cancelled too.
    pub async fn close_session(
        &self,
        caller: &Principal,
        session: &str,
        cancel_runs: bool,
    ) -> Result<Session> {
        let (app, caller, id) = (self.clone(), caller.clone(), self.session_id(caller, session).await?);
        self.to_the_end(async move {
            let changed = app.store.close_session(caller.tenant, id).await?;
            app.waker.announce_events(caller.tenant, id, changed.events);
            if cancel_runs {
                app.cancel_reach(caller.tenant, id, Reach::Session, "the session was closed").await?;
                return app.store.get_session(caller.tenant, &SessionRef::Id(id)).await;
            }
            Ok(changed.value)
        })
        .await
    }

    /// Deletes a session, those below it and everything that hangs on them. With `cancel_runs`, what is unfinished is cancelled
    /// first; if it does not end soon, this fails with `session_busy`.
    pub async fn delete_session(
        &self,
        caller: &Principal,
        session: &str,
        cancel_runs: bool,
    ) -> Result<Vec<SessionId>> {
        let (app, caller, id) = (self.clone(), caller.clone(), self.session_id(caller, session).await?);
        self.to_the_end(async move {
            if cancel_runs {
                let reason = "the session is deleted";
                let cancelled = app.cancel_reach(caller.tenant, id, Reach::Tree, reason).await?;
                let until = Instant::now() + STOPPED_WITHIN;
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
