use remuda_dispatch::Slots;
use remuda_domain::{
    ControlPlaneId, MessageId, Pool, Run, RunId, RunInput, TenantId, Timestamp, ToolCallId, WorkspaceId,
    execution::Policies,
    message::{Part, Role},
    run::{MessageInput, ParkReason, ToolsInput},
    session::SessionRef,
    tool::ToolCall,
    worker::Registration,
};
use remuda_engine::{AgentRuntime, AgentSettings, Ending, Engine, Entry, Placement};
use remuda_models::{ModelOptions, Models};
use remuda_roots::{RootOptions, WorkspaceRoots};
use remuda_sandbox::Backends;
use remuda_store::{
    ChildSession, NewChild, NewMessage, NewRun, NewSession, Options, ParkRequest, SlotProvider as _,
};
use remuda_tools::{Registry, ToolOptions};
use remuda_transport::{Memory, Transport as _};
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};
use tempfile::TempDir;

use super::*;
use crate::{WorkerOptions, attempt_trace};

const MINUTE: Duration = Duration::from_secs(60);

/// What one incarnation of a worker has, without the token intake.
struct Fixture {
    server: SessionServer,
    transport: Arc<Memory>,
    tenant: TenantId,
    workspace: WorkspaceId,
    // After the store: fields are dropped in this order.
    _directory: TempDir,
}

fn input() -> RunInput {
    let parts = vec![Part::text("look")];
    RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None })
}

fn child() -> NewChild {
    let new_session = ChildSession {
        title: String::new(),
        agent: "explore".to_owned(),
        model: None,
        permissions: Default::default(),
    };
    NewChild {
        new_session: Some(new_session),
        permissions: None,
        run: Run::queued(RunId::new(), (TenantId::new(), SessionId::new()), input(), MINUTE),
    }
}

fn waiting_for(child: RunId) -> RunTransition {
    RunTransition::Park(ParkRequest {
        children: vec![child],
        needed: 1,
        ..ParkRequest::on(ParkReason::Children)
    })
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", directory.path().join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/nonexistent").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let transport = Arc::new(Memory::new());
        let tools = Registry::native(&ToolOptions::default());
        let catalog = remuda_engine::tool_catalog(&tools);
        let loader = Loader::new(PlatformDirectories::default(), EnvironmentAccess::default(), catalog);
        let models = Models::new(ModelOptions::default());
        let engine = Engine {
            store: Arc::clone(&store),
            transport: transport.clone(),
            dispatcher: Dispatcher::new(Arc::clone(&store), transport.clone(), Slots::default()),
            tools,
            backends: Backends::default(),
            placement: Arc::new(Placement::new(Arc::new(Policies::default()), any_directory())),
            agents: Arc::new(AgentRuntime::new(loader, models, AgentSettings::default())),
        };
        let id = WorkerId::new();
        let (host, version) = ("test".to_owned(), "0".to_owned());
        let options = WorkerOptions {
            host: host.clone(),
            version: version.clone(),
            pool: Pool::default(),
            slots: 4,
            lease: MINUTE,
            heartbeat: MINUTE,
            drain_deadline: MINUTE,
            max_consecutive_runs: 1,
        };
        let registration =
            Registration { id, host, version, pool: Pool::default(), slots: 4, bus_secret: None };
        store.register_worker(&registration, MINUTE).await.unwrap();
        let server = SessionServer {
            worker: Arc::new(Worker::new(options, engine, None)),
            id,
            active_sessions: ActiveSessions::default(),
            drain: CancellationToken::new(),
            interrupt: CancellationToken::new(),
            abandon: CancellationToken::new(),
            lost: CancellationToken::new(),
        };
        Self { server, transport, tenant, workspace, _directory: directory }
    }

    fn store(&self) -> &dyn remuda_store::Store {
        &*self.server.worker.engine.store
    }

    /// A run that this worker executes, in a session of its own.
    async fn start_run(&self) -> Grant {
        let session = self.session().await;
        self.submit(session, input()).await;
        self.claim(session).await
    }

    async fn session(&self) -> SessionId {
        let session = NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: self.workspace,
            parent: None,
            name: None,
            title: String::new(),
            pool: Pool::default(),
            execution: Default::default(),
            agent: None,
            model: None,
            permissions: Default::default(),
            budget: None,
        };
        self.store().create_session(&session).await.unwrap();
        session.id
    }

    async fn submit(&self, session: SessionId, input: RunInput) -> RunId {
        self.submit_for(session, input, None).await
    }

    async fn submit_for(
        &self,
        session: SessionId,
        input: RunInput,
        awaited_by: Option<ControlPlaneId>,
    ) -> RunId {
        let run = NewRun::from(Run {
            awaited_by,
            ..Run::queued(RunId::new(), (self.tenant, session), input, MINUTE)
        });
        self.store().submit(run).await.unwrap().run.id
    }

    async fn claim(&self, session: SessionId) -> Grant {
        match self.server.claim(self.tenant, session).await.unwrap() {
            Claim::Granted(grant) => *grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    async fn state(&self, run: RunId) -> RunState {
        self.store().get_run(self.tenant, run).await.unwrap().state
    }
}

/// A run that is about to hand over or park while a cancel request is pending ends instead. Its relatives are settled
/// without the reconciler.
#[tokio::test]
async fn cancelled_run_settles_its_relatives_when_it_hands_over_or_parks() {
    for parks in [false, true] {
        let fixture = Fixture::new().await;
        let parent = fixture.start_run().await;
        let new_child = child();
        let (session, run) = (new_child.run.session, new_child.run.id);
        let park = Commit::new(parent.fence, parent.run.id, waiting_for(run));
        fixture.store().commit(Commit { children: vec![new_child], ..park }).await.unwrap();
        let grant = fixture.claim(session).await;
        fixture.store().request_cancel(fixture.tenant, run, "enough").await.unwrap();
        assert_eq!(fixture.state(parent.run.id).await, RunState::Parked);
        // The child has not received the request yet, and creates a child of its own.
        let late = child();
        let below = late.run.id;
        let entry = Entry { children: vec![late], ..Entry::default() };
        let then = if parks { waiting_for(below) } else { RunTransition::HandOver };
        let hand_over = HandOver { entry, events: Vec::new() };
        fixture.server.commit_hand_over(&grant, hand_over, then, None).await.unwrap();
        assert_eq!(fixture.state(run).await, RunState::Cancelled);
        assert_eq!(fixture.state(below).await, RunState::Cancelled, "parks: {parks}");
        assert_eq!(fixture.state(parent.run.id).await, RunState::Queued, "parks: {parks}");
        let woken = fixture.transport.token_counts(&Pool::default()).await.unwrap().waiting;
        assert_eq!(woken, 2, "one for the late child, one for the parent");
    }
}

/// An end that cannot be stored would otherwise be retried forever, by one worker after another.
#[tokio::test]
async fn run_fails_if_the_store_rejects_its_end() {
    let fixture = Fixture::new().await;
    let grant = fixture.start_run().await;
    let (id, parts) = (MessageId::new(), vec![Part::text("done")]);
    let message = NewMessage { id, role: Role::Assistant, agent: None, parts };
    let entry = Entry { messages: vec![message.clone(), message], ..Entry::default() };
    let ending = Ending {
        end: RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None },
        started_at: grant.run.created_at,
        stopped_at: None,
        entry,
        events: Vec::new(),
        agent: None,
    };
    let run = grant.run.id;
    let result = fixture.server.commit_ends(vec![EndedRun::new(grant, None, ending, false)], 0).await;
    let committed = result.outcome.unwrap();
    assert!(committed.released, "the session has no other run");
    let run = fixture.store().get_run(fixture.tenant, run).await.unwrap();
    assert_eq!((run.state, run.failure.unwrap().code.as_str()), (RunState::Failed, "internal"));
}

/// The claim sets `started_at`, so that is not the start of the wait.
#[tokio::test]
async fn first_attempt_waits_since_the_submit_and_later_ones_since_the_start() {
    let fixture = Fixture::new().await;
    let grant = fixture.start_run().await;
    assert_eq!(attempt_trace::waited(&grant), (None, grant.run.created_at));
    let hand_over = HandOver { entry: Entry::default(), events: Vec::new() };
    fixture.server.commit_hand_over(&grant, hand_over, RunTransition::HandOver, None).await.unwrap();
    let again = fixture.claim(grant.fence.session).await;
    assert_eq!(attempt_trace::waited(&again), (None, grant.run.started_at.unwrap()));
}

/// Control planes are notified of awaited ends, whether the run was granted first or followed another one.
#[tokio::test]
async fn awaited_runs_are_reported_to_the_waiting_control_plane() {
    let fixture = Fixture::new().await;
    let (session, plane) = (fixture.session().await, ControlPlaneId::new());
    let mut ends = fixture.transport.subscribe_end_notices(plane).await.unwrap();
    let mut awaited = Vec::new();
    for waits in [true, false, true] {
        let run = fixture.submit_for(session, noop(false), waits.then_some(plane)).await;
        awaited.extend(waits.then_some(run));
    }
    let (grant, session_guard) =
        (fixture.claim(session).await, fixture.server.active_sessions.acquire(session).unwrap());
    fixture.server.serve_granted(session_guard, grant).await;
    for run in awaited {
        let [notice] = ends.next().await.unwrap().try_into().unwrap();
        // No sandbox backend is configured, so the runs fail; the reason of a failure is read from the store.
        assert_eq!(notice, RunEndNotice { run, completed: None });
        assert_eq!(fixture.state(run).await, RunState::Failed);
    }
}

fn noop(record: bool) -> RunInput {
    let call = ToolCall {
        id: ToolCallId::new(),
        tool: "noop".to_owned(),
        arguments: serde_json::json!({}),
        parallel: false,
        timeout: None,
    };
    RunInput::Tools(ToolsInput { calls: vec![call], continue_on_error: false, record })
}

/// Runs execute while their predecessors are being committed: one at a time, in order, each once.
#[tokio::test]
async fn long_queue_is_executed_in_order_and_each_run_once() {
    let fixture = Fixture::new().await;
    let session = fixture.session().await;
    let mut runs = Vec::new();
    for number in 0..150 {
        // Some ends hold more than steps and events.
        runs.push(fixture.submit(session, noop(number % 17 == 5)).await);
    }
    let stopped = [runs[40], runs[41], runs[149]];
    for run in stopped {
        fixture.store().request_cancel(fixture.tenant, run, "not needed").await.unwrap();
    }
    let grant = fixture.claim(session).await;
    let session_guard = fixture.server.active_sessions.acquire(session).unwrap();
    let arrival = Arrival { origin: None, received: now() };
    let outcome = RunPipeline::new(&fixture.server, &session_guard, &grant).run(grant, Some(arrival)).await;
    assert_eq!(outcome, SessionOutcome::Idle);
    let mut previous_end: Option<Timestamp> = None;
    for run in runs {
        let run = fixture.store().get_run(fixture.tenant, run).await.unwrap();
        if stopped.contains(&run.id) {
            assert_eq!(run.state, RunState::Cancelled);
            continue;
        }
        // No sandbox backend is configured, so the runs fail. Any end will do.
        assert_eq!((run.state, run.attempt, run.outcomes.len()), (RunState::Failed, 1, 1));
        assert!(run.started_at >= previous_end, "{} started before its predecessor ended", run.seq);
        assert!(run.finished_at >= run.started_at);
        previous_end = run.finished_at;
    }
    let seen = fixture.store().get_session(fixture.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 0));
    let events = fixture.store().read_events(fixture.tenant, session, 0, 1000).await.unwrap();
    let ends = events.events.iter().filter(|event| event.body.terminal_state().is_some()).count();
    assert_eq!(ends, 150);
}

impl Fixture {
    /// A session with two runs, the first of which is granted. The session is active.
    async fn granted_session(&self) -> (SessionGuard, Grant, RunId) {
        let session = self.session().await;
        self.submit(session, noop(false)).await;
        let second = self.submit(session, noop(false)).await;
        (self.server.active_sessions.acquire(session).unwrap(), self.claim(session).await, second)
    }

    async fn waiting_tokens(&self) -> u64 {
        self.transport.token_counts(&Pool::default()).await.unwrap().waiting
    }
}

/// There is no token, so there is none to finish.
#[tokio::test]
async fn directly_granted_session_runs_all_its_runs_without_a_token() {
    let fixture = Fixture::new().await;
    let (session_guard, grant, second) = fixture.granted_session().await;
    let (first, session) = (grant.run.id, grant.fence.session);
    fixture.server.serve_granted(session_guard, grant).await;
    assert!(fixture.state(first).await.is_terminal() && fixture.state(second).await.is_terminal());
    let seen = fixture.store().get_session(fixture.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.pending, fixture.waiting_tokens().await), (None, 0, 0));
    assert!(fixture.server.active_sessions.acquire(session).is_some());
}

/// All slots are busy after the first run. A token has to be published for the rest, as the session has none.
#[tokio::test]
async fn released_session_with_runs_left_gets_a_token() {
    let fixture = Fixture::new().await;
    let (session_guard, grant, second) = fixture.granted_session().await;
    let first = grant.run.id;
    let busy: Vec<_> = (0..4).map(|_| fixture.server.worker.meters.busy()).collect();
    fixture.server.serve_granted(session_guard, grant).await;
    drop(busy);
    assert!(fixture.state(first).await.is_terminal());
    assert_eq!((fixture.state(second).await, fixture.waiting_tokens().await), (RunState::Queued, 1));
}

/// A reserved session cannot be acquired by a token, and an active session cannot be reserved twice.
#[tokio::test]
async fn slot_reservation_is_exclusive_per_session_and_slot() {
    let fixture = Fixture::new().await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Fixture { server, transport: _, tenant: _, workspace: _, _directory } = fixture;
    let server = Arc::new(server);
    let slot_pool = crate::slot_pool::SlotPool::new(Arc::clone(&server), tasks.clone(), stop.clone());
    let (pool, slots) = (Pool::default(), Arc::clone(slot_pool.slots()));
    slots.forget_permits(3);
    let (one, other) = (SessionId::new(), SessionId::new());
    let reservation = slot_pool.reserve_slot(&pool, one).unwrap();
    assert!(slot_pool.reserve_slot(&pool, other).is_none(), "there is one slot");
    assert!(server.active_sessions.acquire(one).is_none());
    drop(reservation);
    let session_guard = server.active_sessions.acquire(one).unwrap();
    let next = slot_pool.reserve_slot(&pool, one).unwrap();
    slots.add_permits(1);
    assert!(slot_pool.reserve_slot(&pool, one).is_none(), "the session is active and has a waiter");
    assert_eq!(slots.available_permits(), 1, "the slot is free again");
    drop(session_guard);
    assert!(server.active_sessions.acquire(one).is_none(), "the reservation holds it now");
    drop(next);
    let reservation = slot_pool.reserve_slot(&pool, one).unwrap();
    tasks.close();
    assert!(!tasks.is_empty(), "shutdown waits for the reservation");
    drop(reservation);
    stop.cancel();
    assert!(slot_pool.reserve_slot(&pool, one).is_none(), "the pool has stopped");
}

/// A grant that another process sent is released if there is no free slot, and a token is published for another
/// worker.
#[tokio::test]
async fn grant_without_a_free_slot_is_released_and_gets_a_token() {
    let fixture = Fixture::new().await;
    let session = fixture.session().await;
    let run = fixture.submit(session, noop(false)).await;
    let grant = fixture.claim(session).await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Fixture { server, transport, tenant, workspace, _directory } = fixture;
    let server = Arc::new(server);
    let slot_pool = crate::slot_pool::SlotPool::new(Arc::clone(&server), tasks.clone(), stop.clone());
    slot_pool.slots().forget_permits(4);
    assert_eq!(slot_pool.free_slots(), 0);
    slot_pool.accept_grant(Box::new(grant));
    tasks.close();
    tasks.wait().await;
    drop(slot_pool);
    let fixture =
        Fixture { server: Arc::into_inner(server).unwrap(), transport, tenant, workspace, _directory };
    let seen = fixture.store().get_session(fixture.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!(
        (seen.owner, fixture.state(run).await, fixture.waiting_tokens().await),
        (None, RunState::Queued, 1)
    );
}

/// The grant was lost. The worker that is told so claims the session, unless it is active already.
#[tokio::test]
async fn lost_grant_is_reclaimed_once() {
    let fixture = Fixture::new().await;
    let session = fixture.session().await;
    let run = fixture.submit(session, noop(false)).await;
    let lost = fixture.claim(session).await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Fixture { server, transport, tenant, workspace, _directory } = fixture;
    let server = Arc::new(server);
    let slot_pool = crate::slot_pool::SlotPool::new(Arc::clone(&server), tasks.clone(), stop.clone());
    let session_guard = server.active_sessions.acquire(session).unwrap();
    slot_pool.reclaim_session(tenant, session);
    assert!(tasks.is_empty(), "the session is active");
    drop(session_guard);
    slot_pool.reclaim_session(tenant, session);
    slot_pool.reclaim_session(tenant, session);
    tasks.close();
    tasks.wait().await;
    assert_eq!(slot_pool.free_slots(), 4);
    drop(slot_pool);
    let fixture =
        Fixture { server: Arc::into_inner(server).unwrap(), transport, tenant, workspace, _directory };
    assert!(fixture.state(run).await.is_terminal());
    let seen = fixture.store().get_session(fixture.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.epoch), (None, lost.fence.epoch + 1));
}

/// Every directory, as for a server with one user.
fn any_directory() -> WorkspaceRoots {
    WorkspaceRoots::new(&RootOptions { single_user: true, ..RootOptions::default() })
}
