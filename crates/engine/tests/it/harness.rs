//! The test harness: a workspace, a session in it, and workers that are started and killed.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::TimeDelta;
use remuda_dispatch::{Dispatcher, Slots};
use remuda_domain::{
    Event, MessageId, Pool, Run, RunId, RunInput, SessionId, TenantId, WorkerId,
    budget::Limit,
    execution::{BackendKind, ExecutionChoice, Policies},
    message::{Message, Part, Role},
    page::PageRequest,
    permission::SessionPermissions,
    run::MessageInput,
    step::Step,
    tool::CallStatus,
    worker::Registration,
};
use remuda_engine::{
    AgentRuntime, AgentSettings, Ending, Engine, Execution, HandOver, Placement, RunControl,
};
use remuda_models::{ModelOptions, Models};
use remuda_roots::{RootOptions, WorkspaceRoots};
use remuda_sandbox::{Backend, LocalBackend, LocalOptions};
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, NewSession, RunTransition, Store};
use remuda_tools::{Registry, Tool, ToolOptions};
use remuda_transport::Transport;
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions,
};
use tempfile::TempDir;

use crate::stopping_transport::StoppingTransport;

const LEASE: Duration = Duration::from_secs(600);
const RUN_TIME: Duration = Duration::from_secs(60);
/// For conditions that certainly come true, on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Clones share everything, but each can use another session.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<StoppingTransport>,
    pub(crate) engine: Engine,
    pub(crate) tenant: TenantId,
    pub(crate) session: SessionId,
    pub(crate) directory: Arc<TempDir>,
    /// The budget of submitted runs.
    pub(crate) budget: Option<Limit>,
}

/// Settings of the operator.
#[derive(Clone, Default)]
pub(crate) struct OperatorSettings<'a> {
    pub(crate) default_model: Option<&'a str>,
    pub(crate) max_lost_attempts: Option<u32>,
    pub(crate) settings: AgentSettings,
    /// Registered after the native tools.
    pub(crate) tool: Option<Arc<dyn Tool>>,
}

/// The agent and the model of most tests. The scenario logs a line to `calls.jsonl` for each model call.
const AGENT: &str = "---\nmodel: workspace/m\ntools: { native: ['*'], skills: ['*'] }\npolicy: { max_steps: 20 }\n---\nYou are tested.\n";
const MODEL: &str = "m: { provider: scripted, name: ../scenario.yaml }\n";

/// All native tools and skills, unless the frontmatter of an agent lists its own.
fn default_tools(frontmatter: &str) -> &'static str {
    match frontmatter.lines().any(|line| line.starts_with("tools:")) {
        true => "",
        false => "tools: { native: ['*'], skills: ['*'] }\n",
    }
}

impl Harness {
    /// A workspace whose model plays `turns`, the lines of a scenario.
    pub(crate) async fn new(turns: &str) -> Self {
        Self::with_settings(turns, OperatorSettings::default()).await
    }

    pub(crate) async fn with_settings(turns: &str, operator: OperatorSettings<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), ".openharness/agents/tested.md", AGENT);
        write(directory.path(), ".openharness/settings.yaml", "default_agent: tested\n");
        write(directory.path(), ".openharness/models/m.yaml", MODEL);
        write(directory.path(), ".openharness/scenario.yaml", &format!("log: calls.jsonl\n{turns}"));
        Self::in_directory(directory, operator).await
    }

    async fn in_directory(directory: TempDir, operator: OperatorSettings<'_>) -> Self {
        let data = directory.path().join(".data");
        fs::create_dir_all(&data).unwrap();
        let mut options = remuda_store::Options::new(format!("sqlite:{}", data.join("remuda.db").display()));
        options.max_lost_attempts = operator.max_lost_attempts.unwrap_or(options.max_lost_attempts);
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let root = directory.path().to_str().unwrap();
        let tenant = store.ensure_tenant("default", root).await.unwrap().id;
        let transport = Arc::new(StoppingTransport::default());
        let local: Arc<dyn Backend> = Arc::new(LocalBackend::new(LocalOptions::default()));
        let mut tools = Registry::native(&ToolOptions::default());
        if let Some(tool) = operator.tool {
            tools = tools.with(tool).unwrap();
        }
        let catalog = remuda_engine::tool_catalog(&tools);
        let loader = Loader::new(PlatformDirectories::default(), EnvironmentAccess::default(), catalog);
        let models = ModelOptions { base_delay: Duration::from_millis(1), ..ModelOptions::default() };
        let engine = Engine {
            store: Arc::clone(&store),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            dispatcher: Dispatcher::new(
                Arc::clone(&store),
                Arc::clone(&transport) as Arc<dyn Transport>,
                Slots::default(),
            ),
            tools,
            backends: [local].into_iter().collect(),
            placement: Arc::new(Placement::new(Arc::new(Policies::default()), any_directory())),
            agents: Arc::new(AgentRuntime::new(
                loader,
                Models::new(models),
                AgentSettings {
                    default_model: operator.default_model.map(str::to_owned),
                    ..operator.settings
                },
            )),
        };
        let directory = Arc::new(directory);
        let mut harness =
            Self { store, transport, engine, tenant, session: SessionId::new(), directory, budget: None };
        harness.session = harness.new_session(None).await;
        harness
    }

    pub(crate) async fn new_session(&self, backend: Option<BackendKind>) -> SessionId {
        self.open(backend, None, None).await
    }

    /// The same harness with a new session of this agent and model.
    pub(crate) async fn with_session(&self, agent: Option<&str>, model: Option<&str>) -> Self {
        Self { session: self.open(None, agent, model).await, ..self.clone() }
    }

    /// The same harness with a new session with these permissions.
    pub(crate) async fn with_permissions(&self, permissions: SessionPermissions) -> Self {
        let session = NewSession { permissions, ..self.new_session_of(None, None, None).await };
        let session = self.store.create_session(&session).await.unwrap().value.id;
        Self { session, ..self.clone() }
    }

    async fn open(
        &self,
        backend: Option<BackendKind>,
        agent: Option<&str>,
        model: Option<&str>,
    ) -> SessionId {
        let session = self.new_session_of(backend, agent, model).await;
        self.store.create_session(&session).await.unwrap().value.id
    }

    async fn new_session_of(
        &self,
        backend: Option<BackendKind>,
        agent: Option<&str>,
        model: Option<&str>,
    ) -> NewSession {
        let workspace = self.store.find_workspace(self.tenant, "default").await.unwrap().unwrap();
        NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: workspace.id,
            parent: None,
            name: None,
            title: String::new(),
            pool: Pool::default(),
            execution: ExecutionChoice { backend, ..ExecutionChoice::default() },
            agent: agent.map(str::to_owned),
            model: model.map(str::to_owned),
            permissions: SessionPermissions::default(),
            budget: None,
        }
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write(self.directory.path(), path, text);
    }

    /// Writes an agent whose model plays a scenario of its own.
    pub(crate) fn write_agent_with_model(&self, name: &str, frontmatter: &str, turns: &str) {
        let tools = default_tools(frontmatter);
        let text = format!("---\nmodel: workspace/{name}\n{tools}{frontmatter}\n---\nYou are {name}.\n");
        self.write(&format!(".openharness/agents/{name}.md"), &text);
        let model = format!(
            "{name}: {{ provider: scripted, name: ../{name}.yaml, price: {{ input: 1, output: 2 }} }}\n"
        );
        self.write(&format!(".openharness/models/{name}.yaml"), &model);
        self.write(&format!(".openharness/{name}.yaml"), turns);
    }

    /// Replaces the frontmatter of the default agent.
    pub(crate) fn write_agent(&self, frontmatter: &str) {
        let tools = default_tools(frontmatter);
        let text = format!("---\nmodel: workspace/m\n{tools}{frontmatter}\n---\nYou are tested.\n");
        self.write(".openharness/agents/tested.md", &text);
    }

    pub(crate) fn write_scenario(&self, turns: &str) {
        self.write(".openharness/scenario.yaml", &format!("log: calls.jsonl\n{turns}"));
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.directory.path().join(path)).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.directory.path().join(path)).unwrap_or_default()
    }

    /// The number of attempts of model calls.
    pub(crate) fn model_call_count(&self) -> usize {
        self.read(".openharness/calls.jsonl").lines().count()
    }

    pub(crate) async fn submit(&self, text: &str) -> RunId {
        self.submit_to(None, text).await
    }

    pub(crate) async fn submit_to(&self, agent: Option<&str>, text: &str) -> RunId {
        self.submit_input(message_input(agent, text), RUN_TIME).await
    }

    pub(crate) async fn submit_for(&self, timeout: Duration, text: &str) -> RunId {
        self.submit_input(message_input(None, text), timeout).await
    }

    pub(crate) async fn submit_input(&self, input: RunInput, timeout: Duration) -> RunId {
        let run = NewRun {
            budget: self.budget,
            ..NewRun::from(Run::queued(RunId::new(), (self.tenant, self.session), input, timeout))
        };
        self.store.submit(run).await.unwrap().run.id
    }

    /// A new worker claims the session.
    pub(crate) async fn claim(&self) -> Grant {
        self.claim_session(self.session).await
    }

    pub(crate) async fn claim_session(&self, session: SessionId) -> Grant {
        let worker = WorkerId::new();
        let registration = Registration {
            id: worker,
            host: "test".into(),
            version: "test".into(),
            pool: Pool::default(),
            slots: 1,
            bus_secret: None,
        };
        self.store.register_worker(&registration, LEASE).await.unwrap();
        loop {
            match self.store.claim(self.tenant, session, worker).await.unwrap() {
                Claim::Granted(grant) => return *grant,
                Claim::Reclaimed(_) => {}
                other => panic!("not granted: {other:?}"),
            }
        }
    }

    /// Makes all rows of the store older: only the store's clock counts.
    pub(crate) async fn age_everything(&self, time: TimeDelta) {
        let mut database = self.database().await;
        for (table, columns) in [
            ("runs", ["created_at", "started_at", "parked_at"].as_slice()),
            ("approvals", &["created_at", "expires_at"]),
            ("workers", &["started_at", "lease_until"]),
        ] {
            let older: Vec<String> =
                columns.iter().map(|column| format!("{column} = {column} - $1")).collect();
            let sql = format!("UPDATE {table} SET {}", older.join(", "));
            sqlx::query(AssertSqlSafe(sql))
                .bind(time.num_microseconds())
                .execute(&mut database)
                .await
                .unwrap();
        }
        database.close().await.unwrap();
    }

    /// Changes the database directly.
    pub(crate) async fn tamper(&self, sql: &'static str) {
        let mut database = self.database().await;
        sqlx::query(sql).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    }

    async fn database(&self) -> SqliteConnection {
        let path = self.directory.path().join(".data/remuda.db");
        SqliteConnectOptions::new().filename(path).busy_timeout(TEST_TIMEOUT).connect().await.unwrap()
    }

    /// Loses all workers, as after SIGKILL.
    pub(crate) async fn expire_leases(&self) {
        self.store.expire_all_leases().await.unwrap();
    }

    /// Executes the head run to its end on one worker.
    pub(crate) async fn execute(&self) -> Run {
        let grant = self.claim().await;
        let execution = self.engine.execute(&grant, &RunControl::default()).await;
        self.finish(&grant, execution).await
    }

    /// Submits a message and executes its run.
    pub(crate) async fn run_message(&self, text: &str) -> Run {
        self.submit(text).await;
        self.execute().await
    }

    pub(crate) async fn run_message_to(&self, agent: &str, text: &str) -> Run {
        self.submit_to(Some(agent), text).await;
        self.execute().await
    }

    /// Executes the head run until `moment`, does `then`, and waits for the end of the execution.
    pub(crate) async fn execute_until(
        &self,
        control: &RunControl,
        moment: impl Future<Output = ()>,
        then: impl AsyncFnOnce(),
    ) -> (Grant, Execution) {
        let grant = self.claim().await;
        let execution = {
            let executing = self.engine.execute(&grant, control);
            tokio::pin!(executing);
            tokio::select! {
                ended = &mut executing => panic!("it ended too early: {ended:?}"),
                () = moment => {}
            }
            then().await;
            executing.await
        };
        (grant, execution)
    }

    /// A worker claims the run and is killed after a commit, counted from 1. Returns false if the run ended before.
    pub(crate) async fn killed_after_commit(&self, commit: usize) -> bool {
        self.transport.stop_after(commit);
        let grant = self.claim().await;
        let control = RunControl::default();
        let died = tokio::select! {
            ended = self.engine.execute(&grant, &control) => {
                self.finish(&grant, ended).await;
                false
            }
            () = self.transport.stopped() => true,
        };
        self.transport.stop_after(0);
        if died {
            self.expire_leases().await;
        }
        died
    }

    /// A worker claims the run and is killed after a commit. If the run is left before, that is committed.
    pub(crate) async fn kill_or_commit_after(&self, commit: usize) {
        self.transport.stop_after(commit);
        let grant = self.claim().await;
        let control = RunControl::default();
        tokio::select! {
            left = self.engine.execute(&grant, &control) => self.commit_execution(&grant, left).await,
            () = self.transport.stopped() => self.expire_leases().await,
        }
        self.transport.stop_after(0);
    }

    /// A worker claims the run and drains after a commit, counted from 1. Returns the run if it ended before.
    pub(crate) async fn drain_after_commit(&self, commit: usize) -> Option<Run> {
        let control = RunControl::default();
        self.transport.cancel_at_commit(commit, &control.drain);
        let grant = self.claim().await;
        match self.engine.execute(&grant, &control).await {
            Execution::HandedOver(hand_over) => {
                self.hand_over(&grant, *hand_over).await;
                None
            }
            ended => Some(self.finish(&grant, ended).await),
        }
    }

    /// Commits a hand-over as a worker does.
    pub(crate) async fn hand_over(&self, grant: &Grant, hand_over: HandOver) {
        self.commit_hand_over(grant, hand_over, RunTransition::HandOver).await;
    }

    async fn commit_hand_over(&self, grant: &Grant, hand_over: HandOver, then: RunTransition) {
        let HandOver { entry, events } = hand_over;
        let commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        let commit = Commit { worked: grant.run.worked, ..commit };
        self.store.commit(commit).await.unwrap();
    }

    /// Commits an end as a worker does.
    pub(crate) async fn finish(&self, grant: &Grant, execution: Execution) -> Run {
        match execution {
            Execution::Ended(_) => self.commit_execution(grant, execution).await,
            other => panic!("the run did not end: {other:?}"),
        }
        self.run(grant.run.id).await
    }

    /// Commits the result of an execution and settles the run's parent and children, as a worker does.
    pub(crate) async fn commit_execution(&self, grant: &Grant, execution: Execution) {
        let Ending { end, started_at, stopped_at, entry, events, agent } = match execution {
            Execution::Ended(ending) => *ending,
            Execution::HandedOver(hand_over) => return self.hand_over(grant, *hand_over).await,
            Execution::Parked(hand_over, parking) => {
                return self.commit_hand_over(grant, *hand_over, RunTransition::Park(parking)).await;
            }
            Execution::Abandoned => panic!("the run was abandoned"),
        };
        let stopped_ago = stopped_at.map(|at| at.elapsed());
        let then = RunTransition::End(Finish {
            end,
            started_at: Some(started_at),
            stopped_ago,
            release: true,
            agent,
        });
        let commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        let committed = self.store.commit(commit).await.unwrap();
        if committed.has_children {
            self.store.cancel_children(self.tenant, grant.run.id, "its parent ended").await.unwrap();
        }
        if let Some(parent) = committed.parent {
            self.store.resume_if_ready(self.tenant, parent).await.unwrap();
        }
    }

    /// One worker with one slot executes everything that is runnable in any session. Returns the number of
    /// executions.
    pub(crate) async fn run_all(&self) -> usize {
        let mut turns = 0;
        while let Some(next) = self.store.runnable_sessions(None, 1).await.unwrap().pop() {
            turns += 1;
            assert!(turns < 5000, "it never ends");
            let mut grant = self.claim_session(next.session).await;
            let began = Instant::now();
            let execution = self.engine.execute(&grant, &RunControl::default()).await;
            grant.run.worked += began.elapsed();
            self.commit_execution(&grant, execution).await;
        }
        turns
    }

    pub(crate) async fn run(&self, run: RunId) -> Run {
        self.store.get_run(self.tenant, run).await.unwrap()
    }

    pub(crate) async fn messages(&self) -> Vec<Message> {
        let mut page = PageRequest { size: 500, token: None };
        let mut messages = Vec::new();
        loop {
            let next = self.store.list_messages(self.tenant, self.session, &page).await.unwrap();
            messages.extend(next.items);
            page.token = next.next;
            if page.token.is_none() {
                return messages;
            }
        }
    }

    pub(crate) async fn steps(&self, run: RunId) -> Vec<Step> {
        self.store.list_steps(self.tenant, run).await.unwrap()
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        self.store.read_events(self.tenant, self.session, 0, 10_000).await.unwrap().events
    }

    /// The transcript without ids and times: two equal runs give equal transcripts.
    pub(crate) async fn transcript(&self) -> Vec<String> {
        self.messages().await.iter().flat_map(lines).collect()
    }
}

fn message_input(agent: Option<&str>, text: &str) -> RunInput {
    RunInput::Message(MessageInput {
        id: MessageId::new(),
        parts: vec![Part::text(text)],
        agent: agent.map(str::to_owned),
    })
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn lines(message: &Message) -> Vec<String> {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let line = |part: &Part| match part {
        Part::Text { text } => format!("{role}: {text}"),
        Part::Image { .. } => format!("{role}: (image)"),
        Part::Reasoning { reasoning } => format!("{role} thinks: {}", reasoning.text),
        Part::ToolUse { call } => format!("{role} calls {} {}", call.tool, call.arguments),
        Part::Summary { text, .. } => format!("{role} sums up: {text}"),
        Part::ToolResult { outcome } => {
            let failure = outcome.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default();
            let output = if outcome.status == CallStatus::Completed {
                outcome.output.to_string()
            } else {
                String::new()
            };
            format!("{} {} {failure}{output}", outcome.tool, outcome.status.as_str())
        }
    };
    message.parts.iter().map(line).collect()
}

/// Every directory, as for a server with one user.
fn any_directory() -> WorkspaceRoots {
    WorkspaceRoots::new(&RootOptions { single_user: true, ..RootOptions::default() })
}
