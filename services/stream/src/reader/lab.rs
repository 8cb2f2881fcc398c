//! Sessions at work, for the tests of readers.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Appended, Cursor, EventBody, MessageId, Pool, RunId, RunInput, RunState, SessionId, TenantId, Timestamp,
    ToolCallId, WorkerId, WorkspaceId,
    event::{Delta, DeltaKind, DeltaOf, NewEvent},
    execution::ExecutionChoice,
    message::{Part, Role},
    permission::SessionPermissions,
    run::{IfBusy, MessageInput, RunEnd},
    worker::Registration,
};
use remuda_grpc::Standing;
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, NewSession, Options, Store, Then};
use remuda_transport::Transport;
use sqlx::Connection as _;
use tempfile::TempDir;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::counted::Counted;
use super::{Reader, Said, Stay, Wish};
use crate::{
    hub::{Hub, HubOptions},
    source::Source,
};

mod counted;

/// A test that waits this long has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const NEVER: Duration = Duration::from_secs(3600);

pub(super) struct Lab {
    pub store: Arc<dyn Store>,
    pub transport: Arc<Counted>,
    pub tenant: TenantId,
    workspace: WorkspaceId,
    pub worker: WorkerId,
    pub root: Place,
    directory: TempDir,
}

/// A session whose worker executes a run.
pub(super) struct Place {
    pub session: SessionId,
    pub grant: Grant,
}

impl Place {
    pub(super) fn run(&self) -> RunId {
        self.grant.run.id
    }

    /// The event by which the session above tells of this one.
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

impl Lab {
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
        };
        store.register_worker(&worker, NEVER).await.unwrap();
        let root = make(&store, tenant, (workspace, worker.id), None).await;
        let worker = worker.id;
        let transport = Arc::default();
        Self { store, transport, tenant, workspace, worker, root, directory }
    }

    /// Executes a statement behind the store's back.
    pub(super) async fn execute(&self, sql: &'static str) {
        let url = format!("sqlite:{}", self.directory.path().join("remuda.db").display());
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }

    /// A session below another one.
    pub(super) async fn below(&self, parent: &Place) -> Place {
        make(&self.store, self.tenant, (self.workspace, self.worker), Some(parent.session)).await
    }

    /// A session of another tenant.
    pub(super) async fn foreign(&self) -> Place {
        let tenant = self.store.ensure_tenant("other", "/srv").await.unwrap().id;
        let workspace = self.store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        make(&self.store, tenant, (workspace, self.worker), None).await
    }

    /// The next run of the same session.
    pub(super) async fn again(&self, place: &Place) -> Place {
        submit(&self.store, self.tenant, place.session, self.worker).await
    }

    pub(super) fn wish(&self, run: Option<RunId>, deltas: bool) -> Wish {
        Wish { session: self.root.session, run, after: 0, deltas, tree: None }
    }

    /// A process that streams.
    pub(super) fn hub(&self, catch_up: Duration) -> Hub {
        let (linger, farewell) = (Duration::from_millis(50), Duration::from_secs(1));
        let options = HubOptions { replay_batch: 10, catch_up, linger, farewell };
        let (store, transport) = (Arc::clone(&self.store), Arc::clone(&self.transport));
        Hub::start(store, transport, options, &TaskTracker::new(), CancellationToken::new())
    }

    pub(super) async fn open(&self, hub: &Hub, wish: Wish) -> remuda_domain::Result<Reader> {
        self.open_for(hub, wish, Standing::default()).await
    }

    pub(super) async fn open_for(
        &self,
        hub: &Hub,
        wish: Wish,
        standing: Standing,
    ) -> remuda_domain::Result<Reader> {
        let source = Source { hub: hub.clone(), tenant: self.tenant };
        let _seat = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let (stop, farewell) = (CancellationToken::new(), Duration::ZERO);
        Reader::open(source, wish, Stay { _seat, stop, farewell, standing }).await
    }

    /// A reader in a process of its own.
    pub(super) async fn reader(&self, wish: Wish, catch_up: Duration) -> Reader {
        self.open(&self.hub(catch_up), wish).await.unwrap()
    }

    /// Seven bytes of a message.
    pub(super) fn delta(&self, message: MessageId, offset: u64) -> Delta {
        self.piece(message, offset, &format!("piece {}", offset % 10))
    }

    pub(super) fn piece(&self, message: MessageId, offset: u64, text: &str) -> Delta {
        Delta {
            run: self.root.run(),
            of: DeltaOf::Message(message),
            kind: DeltaKind::Text,
            offset,
            text: text.to_owned(),
        }
    }

    pub(super) async fn say(&self, deltas: &[Delta]) {
        self.transport.publish_deltas(self.tenant, self.root.session, deltas).await;
    }

    pub(super) async fn commit(&self, commit: Commit) -> Appended {
        self.store.commit(commit).await.unwrap().events
    }

    /// Writes an event, of which nobody is told.
    pub(super) async fn write(&self, place: &Place, body: EventBody) -> Appended {
        let event = NewEvent { run: Some(place.run()), at: Timestamp::UNIX_EPOCH, body };
        let commit = Commit::new(place.grant.fence, place.run(), Then::Continue);
        self.commit(Commit { events: vec![event], ..commit }).await
    }

    /// Writes an event and tells of it.
    pub(super) async fn tell(&self, place: &Place, body: EventBody) {
        let events = self.write(place, body).await;
        self.transport.publish_events(self.tenant, place.session, &events).await;
    }

    /// Ends a run, of which nobody is told.
    pub(super) async fn end_silently(&self, place: &Place) -> Appended {
        let end = RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None };
        let started_at = Timestamp::UNIX_EPOCH;
        let finish =
            Finish { end, started_at: Some(started_at), stopped_ago: None, give_up: true, agent: None };
        self.commit(Commit::new(place.grant.fence, place.run(), Then::End(finish))).await
    }

    pub(super) async fn end(&self, place: &Place) {
        let events = self.end_silently(place).await;
        self.transport.publish_events(self.tenant, place.session, &events).await;
    }

    /// Commits that a message is complete, and says so.
    pub(super) async fn complete(&self, message: MessageId) {
        let parts = vec![Part::text("whole")];
        let body = EventBody::MessageCompleted { message, role: Role::Assistant, agent: None, parts };
        self.tell(&self.root, body).await;
    }
}

async fn make(
    store: &Arc<dyn Store>,
    tenant: TenantId,
    (workspace, worker): (WorkspaceId, WorkerId),
    parent: Option<SessionId>,
) -> Place {
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

async fn submit(store: &Arc<dyn Store>, tenant: TenantId, session: SessionId, worker: WorkerId) -> Place {
    let input = MessageInput { id: MessageId::new(), parts: vec![Part::text("hello")], agent: None };
    let run = NewRun {
        id: RunId::new(),
        tenant,
        session,
        input: RunInput::Message(input),
        timeout: Duration::from_secs(600),
        if_busy: IfBusy::Enqueue,
        idempotency: None,
        traceparent: None,
        awaited_by: None,
        budget: None,
    };
    store.submit(run).await.unwrap();
    let Claim::Granted(grant) = store.claim(tenant, session, worker).await.unwrap() else {
        panic!("not granted")
    };
    Place { session, grant: *grant }
}

pub(super) async fn next(reader: &mut Reader) -> Said {
    timeout(PATIENCE, reader.next()).await.unwrap().unwrap().unwrap()
}

/// Reads the events there are. Further events come live.
pub(super) async fn catch_up(reader: &mut Reader) {
    let Said::Events(events) = next(reader).await else { panic!("a delta before the events") };
    assert_eq!(events.last().unwrap().body.name(), "run.queued");
    // Nothing more comes: the reader has looked, and waits.
    assert!(timeout(Duration::from_millis(50), reader.next()).await.is_err());
    assert!(!reader.root.is_busy());
}

/// The pieces that are said next.
pub(super) async fn pieces(reader: &mut Reader) -> Vec<Delta> {
    match next(reader).await {
        Said::Deltas(deltas) => deltas.iter().map(|delta| Delta::clone(delta)).collect(),
        Said::Events(events) => panic!("{events:?}"),
    }
}

/// The cursors of the next events.
pub(super) async fn cursors(reader: &mut Reader) -> Vec<Cursor> {
    match next(reader).await {
        Said::Events(events) => events.iter().map(|event| event.cursor).collect(),
        Said::Deltas(deltas) => panic!("{deltas:?}"),
    }
}

/// How a stream ends that was told nothing more.
pub(super) async fn refusal(reader: &mut Reader) -> remuda_domain::Error {
    let error = timeout(PATIENCE, reader.next()).await.unwrap().unwrap().unwrap_err();
    assert!(reader.next().await.is_none());
    error
}

pub(super) fn names(said: Said) -> Vec<&'static str> {
    match said {
        Said::Events(events) => events.iter().map(|event| event.body.name()).collect(),
        Said::Deltas(deltas) => deltas.iter().map(|_| "delta").collect(),
    }
}
