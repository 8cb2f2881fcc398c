use remuda_domain::{
    MessageId, PlaneId, Pool, RunId, RunInput, Timestamp, ToolCallId, WorkspaceId,
    execution::Policies,
    message::{Part, Role},
    run::{IfBusy, MessageInput, ParkReason, ToolsInput},
    session::SessionRef,
    tool::ToolCall,
    worker::Registration,
};
use remuda_engine::{AgentRuntime, AgentSettings, Ending, Engine, Entry, Placement};
use remuda_models::{ModelOptions, Models};
use remuda_sandbox::Backends;
use remuda_store::{ChildSession, NewChild, NewMessage, NewRun, NewSession, Options, Parking, Seats as _};
use remuda_tools::{Registry, ToolOptions};
use remuda_transport::{Memory, Transport as _};
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};
use tempfile::TempDir;

use super::*;
use crate::{WorkerOptions, traced};

const MINUTE: Duration = Duration::from_secs(60);

/// What one life of a worker has, without a loop that takes tokens.
struct Lab {
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
        session: SessionId::new(),
        run: RunId::new(),
        input: input(),
        timeout: MINUTE,
        traceparent: None,
    }
}

fn waiting_for(child: RunId) -> Then {
    Then::Park(Parking { children: vec![child], needed: 1, ..Parking::on(ParkReason::Children) })
}

impl Lab {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", directory.path().join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/nonexistent").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let transport = Arc::new(Memory::new());
        let loader = Loader::new(PlatformDirectories::default(), EnvironmentAccess::default());
        let models = Models::new(ModelOptions::default());
        let engine = Engine {
            store: Arc::clone(&store),
            transport: transport.clone(),
            tools: Registry::native(&ToolOptions::default()),
            backends: Backends::default(),
            placement: Arc::new(Placement::new(Arc::new(Policies::default()))),
            agents: Arc::new(AgentRuntime::new(loader, models, AgentSettings::default())),
        };
        let id = WorkerId::new();
        let (host, version) = ("lab".to_owned(), "0".to_owned());
        let options = WorkerOptions {
            host: host.clone(),
            version: version.clone(),
            pool: Pool::default(),
            slots: 4,
            lease: MINUTE,
            heartbeat: MINUTE,
            drain_deadline: MINUTE,
            turn: 1,
        };
        let registration = Registration { id, host, version, pool: Pool::default(), slots: 4 };
        store.register_worker(&registration, MINUTE).await.unwrap();
        let server = SessionServer {
            worker: Arc::new(Worker::new(options, engine, None)),
            id,
            held: Held::default(),
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
    async fn begun(&self) -> Grant {
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

    async fn submit_for(&self, session: SessionId, input: RunInput, awaited_by: Option<PlaneId>) -> RunId {
        let run = NewRun {
            id: RunId::new(),
            tenant: self.tenant,
            session,
            input,
            timeout: MINUTE,
            if_busy: IfBusy::Enqueue,
            idempotency: None,
            traceparent: None,
            awaited_by,
            budget: None,
        };
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

/// Somebody asked for it to stop while it was about to hand over, or to wait: it ends instead, and nobody waits for a reconciler.
#[tokio::test]
async fn a_run_that_ends_by_being_given_back_tells_its_relatives() {
    for parks in [false, true] {
        let lab = Lab::new().await;
        let parent = lab.begun().await;
        let made = child();
        let (session, run) = (made.session, made.run);
        let park = Commit::new(parent.fence, parent.run.id, waiting_for(run));
        lab.store().commit(Commit { children: vec![made], ..park }).await.unwrap();
        let grant = lab.claim(session).await;
        lab.store().request_cancel(lab.tenant, run, "enough").await.unwrap();
        assert_eq!(lab.state(parent.run.id).await, RunState::Parked);
        // It has not heard of it yet, and makes another one.
        let late = child();
        let below = late.run;
        let entry = Entry { children: vec![late], ..Entry::default() };
        let then = if parks { waiting_for(below) } else { Then::HandOver };
        let hand_over = HandOver { entry, events: Vec::new() };
        lab.server.give_back(&grant, hand_over, then, None).await.unwrap();
        assert_eq!(lab.state(run).await, RunState::Cancelled);
        assert_eq!(lab.state(below).await, RunState::Cancelled, "parks: {parks}");
        assert_eq!(lab.state(parent.run.id).await, RunState::Queued, "parks: {parks}");
        let woken = lab.transport.token_counts(&Pool::default()).await.unwrap().waiting;
        assert_eq!(woken, 2, "one for the late child, one for the parent");
    }
}

/// An end that cannot be stored as it is would be tried for ever, by one worker after the other.
#[tokio::test]
async fn a_run_whose_end_is_refused_ends_all_the_same() {
    let lab = Lab::new().await;
    let grant = lab.begun().await;
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
    let saved = lab.server.save(vec![Done::new(grant, None, ending, false)], 0).await;
    let committed = saved.outcome.unwrap();
    assert!(committed.released, "the session goes on with its next run, of which there is none");
    let run = lab.store().get_run(lab.tenant, run).await.unwrap();
    assert_eq!((run.state, run.failure.unwrap().code.as_str()), (RunState::Failed, "internal"));
}

/// The claim has set the time of the start by then.
#[tokio::test]
async fn a_first_attempt_has_waited_since_the_submission() {
    let lab = Lab::new().await;
    let grant = lab.begun().await;
    assert_eq!(traced::waited(&grant), (None, grant.run.created_at));
    let hand_over = HandOver { entry: Entry::default(), events: Vec::new() };
    lab.server.give_back(&grant, hand_over, Then::HandOver, None).await.unwrap();
    let again = lab.claim(grant.fence.session).await;
    assert_eq!(traced::waited(&again), (None, grant.run.started_at.unwrap()));
}

/// Whoever waits is told of the end of the run by name, whether that was granted first or came behind another.
#[tokio::test]
async fn who_waits_for_a_run_is_told_of_its_end() {
    let lab = Lab::new().await;
    let (session, plane) = (lab.session().await, PlaneId::new());
    let mut ends = lab.transport.subscribe_ends(plane).await.unwrap();
    let mut awaited = Vec::new();
    for waits in [true, false, true] {
        let run = lab.submit_for(session, noop(false), waits.then_some(plane)).await;
        awaited.extend(waits.then_some(run));
    }
    let (grant, hold) = (lab.claim(session).await, lab.server.held.take(session).unwrap());
    lab.server.serve_granted(hold, grant).await;
    for run in awaited {
        let [words] = ends.next().await.unwrap().try_into().unwrap();
        // There is no place to execute anything here, and why a run failed is asked of the store.
        assert_eq!(words, LastWords { run, completed: None });
        assert_eq!(lab.state(run).await, RunState::Failed);
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

/// Runs are executed while those before them are being saved, one at a time, in their order, each once.
#[tokio::test]
async fn a_long_line_is_worked_off_in_order() {
    let lab = Lab::new().await;
    let session = lab.session().await;
    let mut line = Vec::new();
    for number in 0..150 {
        // Some are more than steps and events.
        line.push(lab.submit(session, noop(number % 17 == 5)).await);
    }
    let stopped = [line[40], line[41], line[149]];
    for run in stopped {
        lab.store().request_cancel(lab.tenant, run, "not needed").await.unwrap();
    }
    let grant = lab.claim(session).await;
    let hold = lab.server.held.take(session).unwrap();
    let arrival = Arrival { origin: None, received: now() };
    let left = Turn::new(&lab.server, &hold, &grant).run(grant, Some(arrival)).await;
    assert_eq!(left, Left::Idle);
    let mut over: Option<Timestamp> = None;
    for run in line {
        let run = lab.store().get_run(lab.tenant, run).await.unwrap();
        if stopped.contains(&run.id) {
            assert_eq!(run.state, RunState::Cancelled);
            continue;
        }
        // There is no place to execute anything here, which is as good an end as any.
        assert_eq!((run.state, run.attempt, run.outcomes.len()), (RunState::Failed, 1, 1));
        assert!(run.started_at >= over, "{} began before the one before it was over", run.seq);
        assert!(run.finished_at >= run.started_at);
        over = run.finished_at;
    }
    let seen = lab.store().get_session(lab.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 0));
    let events = lab.store().read_events(lab.tenant, session, 0, 1000).await.unwrap();
    let ends = events.events.iter().filter(|event| event.body.terminal_state().is_some()).count();
    assert_eq!(ends, 150);
}

impl Lab {
    /// A session with two runs, the first of which is granted and in hand.
    async fn handed(&self) -> (Hold, Grant, RunId) {
        let session = self.session().await;
        self.submit(session, noop(false)).await;
        let second = self.submit(session, noop(false)).await;
        (self.server.held.take(session).unwrap(), self.claim(session).await, second)
    }

    async fn woken(&self) -> u64 {
        self.transport.token_counts(&Pool::default()).await.unwrap().waiting
    }
}

/// There is no token, so nothing is left to be done for one.
#[tokio::test]
async fn what_the_store_grants_is_worked_off() {
    let lab = Lab::new().await;
    let (hold, grant, second) = lab.handed().await;
    let (first, session) = (grant.run.id, grant.fence.session);
    lab.server.serve_granted(hold, grant).await;
    assert!(lab.state(first).await.is_terminal() && lab.state(second).await.is_terminal());
    let seen = lab.store().get_session(lab.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.pending, lab.woken().await), (None, 0, 0));
    assert!(lab.server.held.take(session).is_some());
}

/// Its turn is over and others want the slot: whoever goes on has to be woken, as no token is left to do so.
#[tokio::test]
async fn what_is_left_of_a_session_without_a_token_is_woken() {
    let lab = Lab::new().await;
    let (hold, grant, second) = lab.handed().await;
    let first = grant.run.id;
    let crowd: Vec<_> = (0..4).map(|_| lab.server.worker.meters.busy()).collect();
    lab.server.serve_granted(hold, grant).await;
    drop(crowd);
    assert!(lab.state(first).await.is_terminal());
    assert_eq!((lab.state(second).await, lab.woken().await), (RunState::Queued, 1));
}

/// A token that comes meanwhile finds the session in hand, and a session in hand is granted to nobody.
#[tokio::test]
async fn room_is_given_once_per_session_and_slot() {
    let lab = Lab::new().await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Lab { server, transport: _, tenant: _, workspace: _, _directory } = lab;
    let server = Arc::new(server);
    let room = crate::seats::Room::new(Arc::clone(&server), tasks.clone(), stop.clone());
    let (pool, slots) = (Pool::default(), Arc::clone(room.slots()));
    slots.forget_permits(3);
    let (one, other) = (SessionId::new(), SessionId::new());
    let seat = room.seat(&pool, one).unwrap();
    assert!(room.seat(&pool, other).is_none(), "there is one slot");
    assert!(server.held.take(one).is_none());
    drop(seat);
    let hold = server.held.take(one).unwrap();
    let next = room.seat(&pool, one).unwrap();
    slots.add_permits(1);
    assert!(room.seat(&pool, one).is_none(), "it is in hand, and somebody waits for it");
    assert_eq!(slots.available_permits(), 1, "what came to nothing is given back");
    drop(hold);
    assert!(server.held.take(one).is_none(), "it was handed on");
    drop(next);
    let seat = room.seat(&pool, one).unwrap();
    tasks.close();
    assert!(!tasks.is_empty(), "an end waits for it");
    drop(seat);
    stop.cancel();
    assert!(room.seat(&pool, one).is_none(), "nothing more is taken");
}

/// What was granted elsewhere and sent here is given back if there is no slot for it, and whoever has one is woken.
#[tokio::test]
async fn what_finds_no_room_is_given_back() {
    let lab = Lab::new().await;
    let session = lab.session().await;
    let run = lab.submit(session, noop(false)).await;
    let grant = lab.claim(session).await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Lab { server, transport, tenant, workspace, _directory } = lab;
    let server = Arc::new(server);
    let room = crate::seats::Room::new(Arc::clone(&server), tasks.clone(), stop.clone());
    room.slots().forget_permits(4);
    assert_eq!(room.free(), 0);
    room.receive(Box::new(grant));
    tasks.close();
    tasks.wait().await;
    drop(room);
    let lab = Lab { server: Arc::into_inner(server).unwrap(), transport, tenant, workspace, _directory };
    let seen = lab.store().get_session(lab.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, lab.state(run).await, lab.woken().await), (None, RunState::Queued, 1));
}

/// The grant was lost on its way: whoever is told that a session is its own claims it, unless it has it in hand.
#[tokio::test]
async fn who_is_told_what_is_its_own_claims_it_once() {
    let lab = Lab::new().await;
    let session = lab.session().await;
    let run = lab.submit(session, noop(false)).await;
    let lost = lab.claim(session).await;
    let (tasks, stop) = (tokio_util::task::TaskTracker::new(), CancellationToken::new());
    let Lab { server, transport, tenant, workspace, _directory } = lab;
    let server = Arc::new(server);
    let room = crate::seats::Room::new(Arc::clone(&server), tasks.clone(), stop.clone());
    let hold = server.held.take(session).unwrap();
    room.claim_own(tenant, session);
    assert!(tasks.is_empty(), "it is in hand");
    drop(hold);
    room.claim_own(tenant, session);
    room.claim_own(tenant, session);
    tasks.close();
    tasks.wait().await;
    assert_eq!(room.free(), 4);
    drop(room);
    let lab = Lab { server: Arc::into_inner(server).unwrap(), transport, tenant, workspace, _directory };
    assert!(lab.state(run).await.is_terminal());
    let seen = lab.store().get_session(lab.tenant, &SessionRef::Id(session)).await.unwrap();
    assert_eq!((seen.owner, seen.epoch), (None, lost.fence.epoch + 1));
}
