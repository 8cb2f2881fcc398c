//! Test fixture: sessions with running runs, for the tests of readers.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Appended, Cursor, EventBody, MessageId, Pool, Run, RunId, RunInput, RunState, SessionId, TenantId,
    Timestamp, ToolCallId, WorkerId, WorkspaceId,
    event::{Delta, DeltaKind, DeltaOf, NewEvent},
    execution::ExecutionChoice,
    message::{Part, Role},
    permission::SessionPermissions,
    run::{MessageInput, RunEnd},
    worker::Registration,
};
use remuda_grpc::KeyValidity;
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, NewSession, Options, RunTransition, Store};
use remuda_transport::Transport;
use sqlx::Connection as _;
use tempfile::TempDir;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::counting_transport::CountingTransport;
use super::{Batch, ReadRequest, Reader, ReaderLifetime};
use crate::{
    event_source::Source,
    hub::{Hub, HubOptions},
};

mod counting_transport;

/// A test that waits this long has failed.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const NEVER: Duration = Duration::from_secs(3600);

pub(super) struct Fixture {
    pub store: Arc<dyn Store>,
    pub transport: Arc<CountingTransport>,
    pub tenant: TenantId,
    workspace: WorkspaceId,
    pub worker: WorkerId,
    pub root: TestSession,
    directory: TempDir,
}

/// A session whose worker executes a run.
pub(super) struct TestSession {
    pub session: SessionId,
    pub grant: Grant,
}

impl TestSession {
    pub(super) fn run(&self) -> RunId {
        self.grant.run.id
    }

    /// The event with which the parent session announces this one.
    pub(super) fn started(&self) -> EventBody {
        EventBody::SubagentStarted {
            call: ToolCallId::new(),
            session: self.session,
            run: self.run(),
            agent: "helper".to_owned(),
            description: "help".to_owned(),
            background: false,
        }
    }
}

impl Fixture {
    pub(super) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", directory.path().join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/srv").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let worker = Registration {
            id: WorkerId::new(),
            host: "host".to_owned(),
            version: "0.1.0".to_owned(),
            pool: Pool::default(),
            slots: 1,
            bus_secret: None,
        };
        store.register_worker(&worker, NEVER).await.unwrap();
        let root = create_session(&store, tenant, (workspace, worker.id), None).await;
        let worker = worker.id;
        let transport = Arc::default();
        Self { store, transport, tenant, workspace, worker, root, directory }
    }

    /// Executes a statement that bypasses the store.
    pub(super) async fn execute(&self, sql: &'static str) {
        let url = format!("sqlite:{}", self.directory.path().join("remuda.db").display());
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }

    /// A child of another session.
    pub(super) async fn child_session(&self, parent: &TestSession) -> TestSession {
        create_session(&self.store, self.tenant, (self.workspace, self.worker), Some(parent.session)).await
    }

    /// A session of another tenant.
    pub(super) async fn other_tenant_session(&self) -> TestSession {
        let tenant = self.store.ensure_tenant("other", "/srv").await.unwrap().id;
        let workspace = self.store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        create_session(&self.store, tenant, (workspace, self.worker), None).await
    }

    /// The next run of the same session.
    pub(super) async fn next_run(&self, test_session: &TestSession) -> TestSession {
        submit(&self.store, self.tenant, test_session.session, self.worker).await
    }

    pub(super) fn request(&self, run: Option<RunId>, deltas: bool) -> ReadRequest {
        ReadRequest { session: self.root.session, run, after: 0, deltas, tree: None }
    }

    /// A hub, as one process has.
    pub(super) fn hub(&self, catch_up: Duration) -> Hub {
        let (linger, drain_time) = (Duration::from_millis(50), Duration::from_secs(1));
        let options = HubOptions { replay_batch: 10, catch_up, linger, drain_time };
        let (store, transport) = (Arc::clone(&self.store), Arc::clone(&self.transport));
        Hub::start(store, transport, options, &TaskTracker::new(), CancellationToken::new())
    }

    pub(super) async fn open(&self, hub: &Hub, request: ReadRequest) -> remuda_domain::Result<Reader> {
        self.open_for(hub, request, KeyValidity::default()).await
    }

    pub(super) async fn open_for(
        &self,
        hub: &Hub,
        request: ReadRequest,
        standing: KeyValidity,
    ) -> remuda_domain::Result<Reader> {
        let source = Source { hub: hub.clone(), tenant: self.tenant };
        let _permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let (stop, drain_time) = (CancellationToken::new(), Duration::ZERO);
        Reader::open(source, request, ReaderLifetime { _permit, stop, drain_time, standing }).await
    }

    /// A reader in a process of its own.
    pub(super) async fn reader(&self, request: ReadRequest, catch_up: Duration) -> Reader {
        self.open(&self.hub(catch_up), request).await.unwrap()
    }

    /// Seven bytes of a message.
    pub(super) fn delta(&self, message: MessageId, offset: u64) -> Delta {
        self.text_delta(message, offset, &format!("piece {}", offset % 10))
    }

    pub(super) fn text_delta(&self, message: MessageId, offset: u64, text: &str) -> Delta {
        Delta {
            run: self.root.run(),
            of: DeltaOf::Message(message),
            kind: DeltaKind::Text,
            offset,
            text: text.to_owned(),
        }
    }

    pub(super) async fn publish_deltas(&self, deltas: &[Delta]) {
        self.transport.publish_deltas(self.tenant, self.root.session, deltas).await;
    }

    pub(super) async fn commit(&self, commit: Commit) -> Appended {
        self.store.commit(commit).await.unwrap().events
    }

    /// Writes an event without publishing it.
    pub(super) async fn write(&self, test_session: &TestSession, body: EventBody) -> Appended {
        let event = NewEvent { run: Some(test_session.run()), at: Timestamp::UNIX_EPOCH, body };
        let commit = Commit::new(test_session.grant.fence, test_session.run(), RunTransition::Continue);
        self.commit(Commit { events: vec![event], ..commit }).await
    }

    /// Writes an event and publishes it.
    pub(super) async fn write_and_publish(&self, test_session: &TestSession, body: EventBody) {
        let events = self.write(test_session, body).await;
        self.transport.publish_events(self.tenant, test_session.session, &events).await;
    }

    /// Ends a run without publishing it.
    pub(super) async fn end_silently(&self, test_session: &TestSession) -> Appended {
        let end = RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None };
        let started_at = Timestamp::UNIX_EPOCH;
        let finish =
            Finish { end, started_at: Some(started_at), stopped_ago: None, release: true, agent: None };
        self.commit(Commit::new(test_session.grant.fence, test_session.run(), RunTransition::End(finish)))
            .await
    }

    pub(super) async fn end(&self, test_session: &TestSession) {
        let events = self.end_silently(test_session).await;
        self.transport.publish_events(self.tenant, test_session.session, &events).await;
    }

    /// Commits a completed message and publishes it.
    pub(super) async fn complete(&self, message: MessageId) {
        let parts = vec![Part::text("whole")];
        let body = EventBody::MessageCompleted { message, role: Role::Assistant, agent: None, parts };
        self.write_and_publish(&self.root, body).await;
    }
}

async fn create_session(
    store: &Arc<dyn Store>,
    tenant: TenantId,
    (workspace, worker): (WorkspaceId, WorkerId),
    parent: Option<SessionId>,
) -> TestSession {
    let new = NewSession {
        id: SessionId::new(),
        tenant,
        workspace,
        parent,
        name: None,
        title: String::new(),
        pool: Pool::default(),
        execution: ExecutionChoice::default(),
        agent: None,
        model: None,
        permissions: SessionPermissions::default(),
        budget: None,
    };
    store.create_session(&new).await.unwrap();
    submit(store, tenant, new.id, worker).await
}

async fn submit(
    store: &Arc<dyn Store>,
    tenant: TenantId,
    session: SessionId,
    worker: WorkerId,
) -> TestSession {
    let input = MessageInput { id: MessageId::new(), parts: vec![Part::text("hello")], agent: None };
    let run = NewRun::from(Run::queued(
        RunId::new(),
        (tenant, session),
        RunInput::Message(input),
        Duration::from_secs(600),
    ));
    store.submit(run).await.unwrap();
    let Claim::Granted(grant) = store.claim(tenant, session, worker).await.unwrap() else {
        panic!("not granted")
    };
    TestSession { session, grant: *grant }
}

pub(super) async fn next(reader: &mut Reader) -> Batch {
    timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap()
}

/// Reads the existing events. Further events come live.
pub(super) async fn catch_up(reader: &mut Reader) {
    let Batch::Events(events) = next(reader).await else { panic!("a delta before the events") };
    assert_eq!(events.last().unwrap().body.name(), "run.queued");
    // No more events: the reader has checked, and waits.
    assert!(timeout(Duration::from_millis(50), reader.next()).await.is_err());
    assert!(!reader.root.is_busy());
}

/// The next deltas.
pub(super) async fn next_deltas(reader: &mut Reader) -> Vec<Delta> {
    match next(reader).await {
        Batch::Deltas(deltas) => deltas.iter().map(|delta| Delta::clone(delta)).collect(),
        Batch::Events(events) => panic!("{events:?}"),
    }
}

/// The cursors of the next events.
pub(super) async fn next_cursors(reader: &mut Reader) -> Vec<Cursor> {
    match next(reader).await {
        Batch::Events(events) => events.iter().map(|event| event.cursor).collect(),
        Batch::Deltas(deltas) => panic!("{deltas:?}"),
    }
}

/// The error with which the stream ends.
pub(super) async fn next_error(reader: &mut Reader) -> remuda_domain::Error {
    let error = timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap_err();
    assert!(reader.next().await.is_none());
    error
}

pub(super) fn names(batch: Batch) -> Vec<&'static str> {
    match batch {
        Batch::Events(events) => events.iter().map(|event| event.body.name()).collect(),
        Batch::Deltas(deltas) => deltas.iter().map(|_| "delta").collect(),
    }
}
