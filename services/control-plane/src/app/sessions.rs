//! Sessions.

use remuda_domain::{
    Code, Error, Pool, SessionId,
    error::Result,
    execution::ExecutionChoice,
    identity::Principal,
    limits,
    message::Message,
    page::{Page, PageRequest},
    run::Run,
    session::{Session, SessionRef, SessionStatus},
};
use remuda_store::{NewSession, Reach, SessionUpdate};

use super::App;

const DEFAULT_WORKSPACE: &str = "default";

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
}

/// How a submit wants its session to be made. What is empty is not asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Making {
    pub execution: ExecutionChoice,
    /// Name of the workspace.
    pub workspace: String,
    pub model: String,
}

impl Making {
    fn says_nothing(&self) -> bool {
        self.execution.is_default() && self.workspace.is_empty() && self.model.is_empty()
    }
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
        };
        let app = self.clone();
        self.to_the_end(async move {
            let changed = app.store.create_session(&session).await?;
            app.waker.announce(session.tenant, session.id, None, changed.events);
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
        let Making { execution, workspace, model } = making.clone();
        let name = session.to_owned();
        let spec = SessionSpec { name, execution, workspace, model, ..SessionSpec::default() };
        match self.create_session(caller, spec).await {
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
            SessionUpdate { title: None, agent: None, model: None } => {
                return Err(Error::invalid("title", "expected a title, an agent or a model to change"));
            }
            SessionUpdate { title, agent, model } => {
                let title = title.as_deref().unwrap_or_default();
                limits::check_text("title", title, limits::MAX_TITLE_CHARS)?;
                agent.as_deref().map_or(Ok(()), |agent| limits::check_name("agent", agent))?;
                model.as_deref().map_or(Ok(()), |model| limits::check_model("model", model))?;
            }
        }
        let (app, tenant, session) = (self.clone(), caller.tenant, self.session_id(caller, session).await?);
        self.to_the_end(async move {
            let changed = app.store.update_session(tenant, session, &update).await?;
            app.waker.announce(tenant, session, None, changed.events);
            Ok(changed.value)
        })
        .await
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
            app.waker.announce(caller.tenant, id, None, changed.events);
            if cancel_runs {
                app.cancel_reach(caller.tenant, id, Reach::Session, "the session was closed").await?;
                return app.store.get_session(caller.tenant, &SessionRef::Id(id)).await;
            }
            Ok(changed.value)
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
