//! Readers on a real store and the transport of one process.

use std::time::Duration;

use remuda_domain::{
    CommitId, EventBody, MessageId, Pool, RunInput, RunState, SessionId, WorkerId,
    event::{DeltaKind, NewEvent},
    execution::ExecutionChoice,
    message::{Part, Role},
    run::{IfBusy, MessageInput, RunEnd},
    worker::Registration,
};
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, NewSession, Options, Then};
use remuda_transport::{Memory, Transport as _};
use tempfile::TempDir;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::*;

/// A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(3600);

struct Lab {
    store: Arc<dyn Store>,
    transport: Memory,
    session: SessionId,
    grant: Grant,
    _directory: TempDir,
}

impl Lab {
    /// A session whose worker executes a run.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", directory.path().join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/srv").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let session = SessionId::new();
        let new = NewSession {
            id: session,
            tenant,
            workspace,
            parent: None,
            name: None,
            title: String::new(),
            pool: Pool::default(),
            execution: ExecutionChoice::default(),
            agent: None,
            model: None,
        };
        store.create_session(&new).await.unwrap();
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
        };
        store.submit(run).await.unwrap();
        let worker = Registration {
            id: WorkerId::new(),
            host: "host".to_owned(),
            version: "0.1.0".to_owned(),
            pool: Pool::default(),
            slots: 1,
        };
        store.register_worker(&worker, NEVER).await.unwrap();
        let Claim::Granted(grant) = store.claim(tenant, session, worker.id).await.unwrap() else {
            panic!("not granted")
        };
        Self { store, transport: Memory::new(), session, grant: *grant, _directory: directory }
    }

    async fn reader(&self, run: Option<RunId>, deltas: bool, catch_up: Duration) -> Reader {
        let transport: Arc<dyn remuda_transport::Transport> = Arc::new(self.transport.clone());
        let tenant = self.grant.fence.tenant;
        let deltas = match deltas {
            true => Some(Deltas::open(Arc::clone(&transport), tenant, self.session, run).await),
            false => None,
        };
        let store = Arc::clone(&self.store);
        let follower =
            Follower::start(Arc::clone(&store), transport, tenant, self.session, 0, (10, catch_up)).await;
        let seat = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Reader::new(store, tenant, run, (follower.unwrap(), deltas), CancellationToken::new(), seat)
    }

    fn delta(&self, message: MessageId, offset: u64) -> Delta {
        let text = format!("piece {offset}");
        Delta { run: self.grant.run.id, message, kind: DeltaKind::Text, offset, text }
    }

    async fn say(&self, deltas: &[Delta]) {
        self.transport.publish_deltas(self.grant.fence.tenant, self.session, deltas).await;
    }

    async fn write(&self, body: Option<EventBody>, then: Then) -> Vec<Event> {
        let event = |body| NewEvent { run: Some(self.grant.run.id), at: long_ago(), body };
        let commit = Commit {
            id: CommitId::new(),
            fence: self.grant.fence,
            run: self.grant.run.id,
            steps: Vec::new(),
            messages: Vec::new(),
            contents: Vec::new(),
            events: body.into_iter().map(event).collect(),
            then,
        };
        self.store.commit(commit).await.unwrap().events
    }

    /// Commits that a message is complete, and says so.
    async fn complete(&self, message: MessageId) {
        let parts = vec![Part::text("whole")];
        let body = EventBody::MessageCompleted { message, role: Role::Assistant, agent: None, parts };
        let events = self.write(Some(body), Then::Continue).await;
        self.transport.publish_events(self.grant.fence.tenant, self.session, &events).await;
    }
}

fn long_ago() -> remuda_domain::Timestamp {
    remuda_domain::Timestamp::UNIX_EPOCH
}

async fn next(reader: &mut Reader) -> Said {
    timeout(PATIENCE, reader.next()).await.unwrap().unwrap().unwrap()
}

/// Reads the events there are. Further events come live.
async fn catch_up(reader: &mut Reader) {
    let Said::Events(events) = next(reader).await else { panic!("a delta before the events") };
    assert_eq!(events.last().unwrap().body.name(), "run.queued");
    // Nothing more comes: the reader has looked, and waits.
    assert!(timeout(Duration::from_millis(50), reader.next()).await.is_err());
    assert!(reader.follower.is_live());
}

fn names(said: Said) -> Vec<&'static str> {
    match said {
        Said::Events(events) => events.iter().map(|event| event.body.name()).collect(),
        Said::Deltas(deltas) => deltas.iter().map(|_| "delta").collect(),
    }
}

#[tokio::test]
async fn pieces_come_until_their_message_is_complete() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(None, true, NEVER).await;
    catch_up(&mut reader).await;
    let (first, second) = (MessageId::new(), MessageId::new());
    lab.say(&[lab.delta(first, 0)]).await;
    assert_eq!(next(&mut reader).await, Said::Deltas(vec![lab.delta(first, 0)]));
    lab.complete(first).await;
    // Both wait for the reader: the event goes first, and with it the piece is of no use.
    lab.say(&[lab.delta(first, 7)]).await;
    lab.say(&[lab.delta(first, 8), lab.delta(second, 0)]).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
    assert_eq!(next(&mut reader).await, Said::Deltas(vec![lab.delta(second, 0)]));
}

#[tokio::test]
async fn a_reader_of_a_run_hears_nothing_of_others() {
    let lab = Lab::new().await;
    let run = lab.grant.run.id;
    let mut reader = lab.reader(Some(run), true, NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    lab.say(&[Delta { run: RunId::new(), ..lab.delta(MessageId::new(), 0) }]).await;
    lab.say(&[lab.delta(message, 0)]).await;
    assert_eq!(next(&mut reader).await, Said::Deltas(vec![lab.delta(message, 0)]));
    let end = RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None };
    let finish = Finish { end, started_at: long_ago(), stopped_ago: None, give_up: false, agent: None };
    let events = lab.write(None, Then::End(finish)).await;
    lab.transport.publish_events(lab.grant.fence.tenant, lab.session, &events).await;
    assert_eq!(names(next(&mut reader).await), ["run.completed"]);
    lab.say(&[lab.delta(message, 7)]).await;
    assert!(reader.next().await.is_none(), "nothing comes after the end");
}

#[tokio::test]
async fn who_did_not_ask_gets_events_only() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(None, false, NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    lab.say(&[lab.delta(message, 0)]).await;
    lab.complete(message).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
}

#[tokio::test]
async fn a_reader_that_was_too_slow_hears_again() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(None, true, NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    for offset in 0..1000 {
        lab.say(&[lab.delta(message, offset)]).await;
    }
    // Its source has ended, and is opened again: what is said from then on arrives, and the stream did not end.
    let deadline = Instant::now() + PATIENCE;
    let heard = loop {
        assert!(Instant::now() < deadline, "no piece came");
        lab.say(&[lab.delta(message, 5000)]).await;
        if let Ok(said) = timeout(Duration::from_millis(20), reader.next()).await {
            break said.unwrap().unwrap();
        }
    };
    assert_eq!(heard, Said::Deltas(vec![lab.delta(message, 5000)]), "what it missed is not made up for");
}

/// Events that were not told live have to be read, which takes longer than the next piece takes to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_pieces_does_not_hold_up_events() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(None, true, Duration::from_millis(50)).await;
    assert_eq!(names(next(&mut reader).await).last(), Some(&"run.queued"));
    let (message, done) = (MessageId::new(), CancellationToken::new());
    let flood = async {
        while !done.is_cancelled() {
            lab.say(&[lab.delta(message, 0)]).await;
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        lab.write(Some(EventBody::RunStopped), Then::Continue).await;
        while names(next(&mut reader).await).last() != Some(&"run.stopped") {}
        done.cancel();
    };
    timeout(PATIENCE, async { tokio::join!(flood, read) }).await.unwrap();
}
