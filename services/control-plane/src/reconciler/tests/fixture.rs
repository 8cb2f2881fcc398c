//! Test fixture: a store on a fresh database, a transport that counts and can be turned off, and an application on both.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use remuda_dispatch::{Dispatcher, Slots};
use remuda_domain::{
    Appended, ControlPlaneId, Error, Pool, Run, RunId, RunInput, SessionId, TenantId, ToolCallId, WorkerId,
    WorkspaceId,
    background_task::TaskStatus,
    error::Result,
    event::Delta,
    execution::ExecutionChoice,
    logs::Notice,
    run::{RunEndNotice, ToolsInput},
    tool::ToolCall,
    worker::{Registration, Signal},
};
use remuda_store::{Claim, Grant, NewRun, NewSession, Options, Store};
use remuda_testkit::wait_for;
use remuda_transport::{
    DeltaSource, EndNoticeSource, EventSource, GrantTransport, Memory, NoticeSource, Published, SignalSource,
    TokenCounts, TokenSource, Transport,
};
use tempfile::TempDir;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::super::{Reconciler, ReconcilerOptions};
use crate::{
    WebhookOptions,
    app::{App, AppOptions},
};

/// A test that waits longer than this has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// An interval that never elapses in a test: whatever happens has another trigger.
pub(super) const NEVER: Duration = Duration::from_secs(3600);

/// Options that keep everything for ever.
pub(super) fn options(interval: Duration) -> ReconcilerOptions {
    ReconcilerOptions {
        host: "lab".to_owned(),
        interval,
        lease: interval * 4,
        events_kept: Duration::ZERO,
        runs_kept: Duration::ZERO,
        sessions_kept: Duration::ZERO,
    }
}

pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) transport: Arc<TestTransport>,
    pub(super) dispatcher: Dispatcher,
    pub(super) app: App,
    pub(super) tenant: TenantId,
    workspace: WorkspaceId,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    // After the store: fields are dropped in declaration order.
    _directory: TempDir,
}

impl Fixture {
    pub(super) async fn new() -> Self {
        Self::on(Arc::new(Memory::new())).await
    }

    pub(super) async fn on(transport: Arc<dyn Transport>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let slots = Slots::default();
        let url = format!("sqlite:{}", directory.path().join("remuda.db").display());
        let options = Options { slots: Arc::new(slots.clone()), ..Options::new(url) };
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/nonexistent").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let transport = Arc::new(TestTransport::new(transport));
        let tasks = TaskTracker::new();
        let dispatcher = Dispatcher::new(Arc::clone(&store), transport.clone(), slots);
        let app = app(&dispatcher, &store, &transport, &tasks, WebhookOptions::default());
        let stop = CancellationToken::new();
        Self { store, transport, dispatcher, app, tenant, workspace, tasks, stop, _directory: directory }
    }

    /// Another control plane on the same store and transport.
    pub(super) fn other_app(&self) -> App {
        self.delivering_app(WebhookOptions::default())
    }

    /// Another control plane, with webhook options.
    pub(super) fn delivering_app(&self, webhooks: WebhookOptions) -> App {
        app(&self.dispatcher, &self.store, &self.transport, &self.tasks, webhooks)
    }

    /// Starts a reconciler. The fixture's own `stop` ends it, too.
    pub(super) fn start(&self, app: &App, interval: Duration) -> CancellationToken {
        self.start_with(app, options(interval))
    }

    /// Starts a reconciler with these options.
    pub(super) fn start_with(&self, app: &App, options: ReconcilerOptions) -> CancellationToken {
        let stop = self.stop.child_token();
        self.tasks.spawn(Reconciler::new(app, options).run(stop.clone()));
        stop
    }

    pub(super) async fn session(&self, pool: &str) -> SessionId {
        let session = NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: self.workspace,
            parent: None,
            name: None,
            title: String::new(),
            pool: pool.parse().unwrap(),
            execution: ExecutionChoice::default(),
            agent: None,
            model: None,
            permissions: Default::default(),
            budget: None,
        };
        self.store.create_session(&session).await.unwrap().value.id
    }

    /// Commits a run and publishes nothing, as if the control plane died after the commit.
    pub(super) async fn submit(&self, session: SessionId) -> RunId {
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: "noop".to_owned(),
            arguments: serde_json::json!({}),
            parallel: false,
            timeout: None,
        };
        let run = NewRun::from(Run::queued(
            RunId::new(),
            (self.tenant, session),
            RunInput::Tools(ToolsInput { calls: vec![call], continue_on_error: false, record: false }),
            Duration::from_secs(600),
        ));
        self.store.submit(run).await.unwrap().run.id
    }

    /// A session of the default pool with one run and no token.
    pub(super) async fn runnable(&self) -> SessionId {
        let session = self.session("default").await;
        self.submit(session).await;
        session
    }

    pub(super) async fn publish(&self, session: SessionId) -> Published {
        self.transport.inner.publish_token(&Pool::default(), self.tenant, session).await.unwrap()
    }

    pub(super) async fn worker(&self, lease: Duration) -> WorkerId {
        let id = WorkerId::new();
        let registration = Registration {
            id,
            host: "lab".to_owned(),
            version: "0".to_owned(),
            pool: Pool::default(),
            slots: 4,
            bus_secret: None,
        };
        self.store.register_worker(&registration, lease).await.unwrap();
        id
    }

    pub(super) async fn claim(&self, session: SessionId, worker: WorkerId) -> Grant {
        match self.store.claim(self.tenant, session, worker).await.unwrap() {
            Claim::Granted(grant) => *grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    pub(super) async fn tokens(&self) -> TokenCounts {
        self.transport.inner.token_counts(&Pool::default()).await.unwrap()
    }

    pub(super) async fn wait_for_tokens(&self, count: u64) {
        // A restarting server does not respond for a while.
        let there = || async {
            let counts = self.transport.inner.token_counts(&Pool::default()).await;
            counts.is_ok_and(|counts| counts.waiting == count)
        };
        wait_for(&format!("{count} tokens"), PATIENCE, there).await;
    }

    /// The stored status of a task.
    pub(super) async fn task(&self, name: &str) -> Option<TaskStatus> {
        self.store.list_tasks().await.unwrap().into_iter().find(|task| task.last.name == name)
    }

    pub(super) async fn wait_for_task(&self, name: &str, wanted: impl Fn(&TaskStatus) -> bool) -> TaskStatus {
        let found = || async { self.task(name).await.filter(|task| wanted(task)) };
        wait_for(&format!("the task {name}"), PATIENCE, found).await
    }

    /// Stops everything, and fails if a task does not end.
    pub(super) async fn shut_down(self) {
        self.stop.cancel();
        let Self { app, tasks, .. } = self;
        drop(app);
        tasks.close();
        tokio::time::timeout(PATIENCE, tasks.wait()).await.expect("all tasks end");
    }
}

fn app(
    dispatcher: &Dispatcher,
    store: &Arc<dyn Store>,
    transport: &Arc<TestTransport>,
    tasks: &TaskTracker,
    webhooks: WebhookOptions,
) -> App {
    let options = AppOptions {
        logs: crate::ProcessLogs::new(remuda_telemetry::Levels::new("info").unwrap(), "test", "test", &[]),
        store: Arc::clone(store),
        transport: Arc::clone(transport) as Arc<dyn Transport>,
        dispatcher: dispatcher.clone(),
        tools: BTreeSet::from(["noop".to_owned()]),
        check_call: Arc::new(|_| Ok(())),
        policies: Arc::default(),
        workspace_roots: remuda_roots::WorkspaceRoots::new(&remuda_roots::RootOptions::default()),
        webhooks,
    };
    App::new(options, tasks.clone())
}

/// A real transport that counts publishes and can be made to fail.
pub(super) struct TestTransport {
    pub(super) inner: Arc<dyn Transport>,
    published: AtomicU64,
    down: AtomicBool,
}

impl TestTransport {
    fn new(inner: Arc<dyn Transport>) -> Self {
        Self { inner, published: AtomicU64::new(0), down: AtomicBool::new(false) }
    }

    /// How many token publishes were attempted since the last call.
    pub(super) fn published(&self) -> u64 {
        self.published.swap(0, Ordering::SeqCst)
    }

    pub(super) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn check(&self) -> Result<()> {
        if self.down.load(Ordering::SeqCst) { Err(Error::unavailable("turned off")) } else { Ok(()) }
    }
}

#[async_trait]
impl Transport for TestTransport {
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published> {
        self.check()?;
        self.published.fetch_add(1, Ordering::SeqCst);
        self.inner.publish_token(pool, tenant, session).await
    }

    async fn discard_token(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        older_than: Duration,
    ) -> Result<bool> {
        self.check()?;
        self.inner.discard_token(pool, tenant, session, older_than).await
    }

    async fn orphaned_tokens(&self) -> Result<u64> {
        self.check()?;
        self.inner.orphaned_tokens().await
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        self.inner.tokens(pool).await
    }

    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended) {
        self.inner.publish_events(tenant, session, events).await;
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        self.inner.subscribe_events(tenant, session).await
    }

    fn notify_end(&self, plane: ControlPlaneId, notice: RunEndNotice) {
        self.inner.notify_end(plane, notice);
    }

    async fn subscribe_end_notices(&self, plane: ControlPlaneId) -> Result<Box<dyn EndNoticeSource>> {
        self.inner.subscribe_end_notices(plane).await
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        self.inner.publish_deltas(tenant, session, deltas).await;
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        self.inner.subscribe_deltas(tenant, session).await
    }

    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()> {
        self.inner.send_signal(worker, signal).await
    }

    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>> {
        self.inner.subscribe_signals(worker).await
    }

    async fn broadcast(&self, notice: &Notice) -> Result<()> {
        self.inner.broadcast(notice).await
    }

    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>> {
        self.inner.subscribe_notices().await
    }

    fn grant_transport(&self) -> Option<&dyn GrantTransport> {
        self.inner.grant_transport()
    }

    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        self.check()?;
        self.inner.token_counts(pool).await
    }

    async fn ping(&self) -> Result<()> {
        self.check()?;
        self.inner.ping().await
    }
}
