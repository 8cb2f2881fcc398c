//! Sessions.

use remuda_domain::{
    Code, Error, Pool, SessionId,
    error::Result,
    execution::ExecutionChoice,
    identity::Principal,
    limits,
    page::{Page, PageRequest},
    run::Run,
    session::{Session, SessionRef, SessionStatus},
    step::Message,
};
use remuda_store::{NewSession, Reach};

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
        let pool = if spec.pool.is_empty() { Pool::default() } else { spec.pool.parse()? };
        let workspace = if spec.workspace.is_empty() { DEFAULT_WORKSPACE } else { &spec.workspace };
        limits::check_name("workspace", workspace)?;
        let found = self.store.find_workspace(caller.tenant, workspace).await?;
        let missing = || Error::new(Code::WorkspaceNotFound, "there is no such workspace").at("workspace");
        let workspace = found.ok_or_else(missing)?.id;
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
        execution: &ExecutionChoice,
    ) -> Result<SessionId> {
        match self.session_like(caller, session, execution).await {
            Err(error) if error.code() == Code::SessionNotFound => {}
            other => return other,
        }
        let spec =
            SessionSpec { name: session.to_owned(), execution: execution.clone(), ..SessionSpec::default() };
        match self.create_session(caller, spec).await {
            Ok(created) => Ok(created.id),
            Err(error) if error.code() == Code::AlreadyExists => {
                self.session_like(caller, session, execution).await
            }
            Err(error) => Err(error),
        }
    }

    /// The session of that name, which must execute where the caller wants it to if that was said.
    pub(super) async fn session_like(
        &self,
        caller: &Principal,
        session: &str,
        execution: &ExecutionChoice,
    ) -> Result<SessionId> {
        if execution.is_default() {
            return self.session_id(caller, session).await;
        }
        let found = self.get_session(caller, session).await?;
        if found.execution == *execution {
            return Ok(found.id);
        }
        let message = "the session was made to execute elsewhere: choose another session, or leave this out";
        Err(Error::new(Code::AlreadyExists, message).at("execution"))
    }

    pub async fn list_sessions(
        &self,
        caller: &Principal,
        status: Option<SessionStatus>,
        page: &PageRequest,
    ) -> Result<Page<Session>> {
        self.store.list_sessions(caller.tenant, status, page).await
    }

    pub async fn set_title(&self, caller: &Principal, session: &str, title: String) -> Result<Session> {
        limits::check_text("title", &title, limits::MAX_TITLE_CHARS)?;
        let (app, tenant, session) = (self.clone(), caller.tenant, self.session_id(caller, session).await?);
        self.to_the_end(async move {
            let changed = app.store.set_title(tenant, session, &title).await?;
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
