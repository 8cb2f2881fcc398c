//! A workspace, a session in it, and workers that come and go.

use std::{fs, path::Path, sync::Arc, time::Duration};

use remuda_domain::{
    CommitId, Event, MessageId, Pool, Run, RunId, RunInput, SessionId, TenantId, WorkerId,
    execution::{BackendKind, ExecutionChoice, Policies},
    message::{Message, Part, Role},
    page::PageRequest,
    run::{IfBusy, MessageInput},
    step::Step,
    tool::CallStatus,
    worker::Registration,
};
use remuda_engine::{AgentRuntime, Engine, Execution, Placement, RunControl};
use remuda_models::{ModelOptions, Models};
use remuda_sandbox::{Backend, LocalBackend, LocalOptions};
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, NewSession, Store, Then};
use remuda_tools::{Registry, ToolOptions};
use remuda_transport::Transport;
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};
use tempfile::TempDir;

use crate::stopping::Stopping;

const LEASE: Duration = Duration::from_secs(600);
const RUN_TIME: Duration = Duration::from_secs(60);

pub(crate) struct Lab {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<Stopping>,
    pub(crate) engine: Engine,
    pub(crate) tenant: TenantId,
    pub(crate) session: SessionId,
    pub(crate) directory: TempDir,
}

/// The agent and the model of most tests. The scenario writes a line into `calls.jsonl` for each question.
const AGENT: &str = "---\nmodel: workspace/m\npolicy: { max_steps: 20 }\n---\nYou are tested.\n";
const MODEL: &str = "m: { provider: scripted, name: ../scenario.yaml }\n";

impl Lab {
    /// A workspace whose model plays `turns`, the lines of a scenario.
    pub(crate) async fn new(turns: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), ".openharness/agents/tested.md", AGENT);
        write(directory.path(), ".openharness/settings.yaml", "default_agent: tested\n");
        write(directory.path(), ".openharness/models/m.yaml", MODEL);
        write(directory.path(), ".openharness/scenario.yaml", &format!("log: calls.jsonl\n{turns}"));
        Self::in_directory(directory).await
    }

    pub(crate) async fn in_directory(directory: TempDir) -> Self {
        let data = directory.path().join(".data");
        fs::create_dir_all(&data).unwrap();
        let options = remuda_store::Options::new(format!("sqlite:{}", data.join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let root = directory.path().to_str().unwrap();
        let tenant = store.ensure_tenant("default", root).await.unwrap().id;
        let transport = Arc::new(Stopping::default());
        let local: Arc<dyn Backend> = Arc::new(LocalBackend::new(LocalOptions::default()));
        let loader = Loader::new(PlatformDirectories::default(), EnvironmentAccess::default());
        let models = ModelOptions { base_delay: Duration::from_millis(1), ..ModelOptions::default() };
        let engine = Engine {
            store: Arc::clone(&store),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            tools: Registry::native(&ToolOptions::default()),
            backends: [local].into_iter().collect(),
            placement: Arc::new(Placement::new(Arc::new(Policies::default()))),
            agents: Arc::new(AgentRuntime::new(loader, Models::new(models), None)),
        };
        let mut lab = Self { store, transport, engine, tenant, session: SessionId::new(), directory };
        lab.session = lab.new_session(None).await;
        lab
    }

    pub(crate) async fn new_session(&self, backend: Option<BackendKind>) -> SessionId {
        let workspace = self.store.find_workspace(self.tenant, "default").await.unwrap().unwrap();
        let session = NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: workspace.id,
            parent: None,
            name: None,
            title: String::new(),
            pool: Pool::default(),
            execution: ExecutionChoice { backend, ..ExecutionChoice::default() },
            agent: None,
            model: None,
        };
        self.store.create_session(&session).await.unwrap().value.id
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write(self.directory.path(), path, text);
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.directory.path().join(path)).unwrap_or_default()
    }

    /// How often a model was asked.
    pub(crate) fn questions(&self) -> usize {
        self.read(".openharness/calls.jsonl").lines().count()
    }

    pub(crate) async fn submit(&self, text: &str) -> RunId {
        self.submit_to(None, text).await
    }

    pub(crate) async fn submit_to(&self, agent: Option<&str>, text: &str) -> RunId {
        let input = MessageInput {
            id: MessageId::new(),
            parts: vec![Part::text(text)],
            agent: agent.map(str::to_owned),
        };
        let run = NewRun {
            id: RunId::new(),
            tenant: self.tenant,
            session: self.session,
            input: RunInput::Message(input),
            timeout: RUN_TIME,
            if_busy: IfBusy::Enqueue,
            idempotency: None,
            traceparent: None,
        };
        self.store.submit(run).await.unwrap().run.id
    }

    /// A new worker takes the session.
    pub(crate) async fn claim(&self) -> Grant {
        let worker = WorkerId::new();
        let registration = Registration {
            id: worker,
            host: "test".into(),
            version: "test".into(),
            pool: Pool::default(),
            slots: 1,
        };
        self.store.register_worker(&registration, LEASE).await.unwrap();
        loop {
            match self.store.claim(self.tenant, self.session, worker).await.unwrap() {
                Claim::Granted(grant) => return *grant,
                Claim::TakenBack(_) => {}
                other => panic!("not granted: {other:?}"),
            }
        }
    }

    /// The worker is gone, as after SIGKILL.
    pub(crate) async fn lose_workers(&self) {
        self.store.expire_all_leases().await.unwrap();
    }

    /// Executes the head run to its end on one worker.
    pub(crate) async fn execute(&self) -> Run {
        let grant = self.claim().await;
        let execution = self.engine.execute(&grant, &RunControl::default()).await;
        self.finish(&grant, execution).await
    }

    /// Submits and executes.
    pub(crate) async fn ask(&self, text: &str) -> Run {
        self.submit(text).await;
        self.execute().await
    }

    /// Commits an end as a worker does.
    pub(crate) async fn finish(&self, grant: &Grant, execution: Execution) -> Run {
        let ending = match execution {
            Execution::Ended(ending) => *ending,
            other => panic!("the run did not end: {other:?}"),
        };
        let finish = Finish {
            end: ending.end,
            started_at: ending.started_at,
            stopped_ago: ending.stopped_at.map(|at| at.elapsed()),
            give_up: true,
            agent: ending.agent,
        };
        let commit = Commit {
            id: CommitId::new(),
            fence: grant.fence,
            run: grant.run.id,
            steps: ending.steps,
            messages: ending.messages,
            contents: ending.contents,
            events: ending.events,
            then: Then::End(finish),
        };
        self.store.commit(commit).await.unwrap();
        self.store.get_run(self.tenant, grant.run.id).await.unwrap()
    }

    pub(crate) async fn messages(&self) -> Vec<Message> {
        let page = PageRequest { size: 500, token: None };
        self.store.list_messages(self.tenant, self.session, &page).await.unwrap().items
    }

    pub(crate) async fn steps(&self, run: RunId) -> Vec<Step> {
        self.store.list_steps(self.tenant, run).await.unwrap()
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        self.store.read_events(self.tenant, self.session, 0, 10_000).await.unwrap().events
    }

    /// What was said, without ids and times: two runs that went the same way give the same.
    pub(crate) async fn transcript(&self) -> Vec<String> {
        self.messages().await.iter().flat_map(lines).collect()
    }
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
        Part::ToolResult { outcome } => {
            let failure = outcome.failure.as_ref().map(|failure| failure.code.as_str()).unwrap_or_default();
            let output = if outcome.status == CallStatus::Completed { outcome.output.to_string() } else { String::new() };
            format!("{} {} {failure}{output}", outcome.tool, outcome.status.as_str())
        }
    };
    message.parts.iter().map(line).collect()
}
