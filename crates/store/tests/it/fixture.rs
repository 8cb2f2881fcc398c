//! The test fixture: a store on a fresh database, with shorthands for common calls.

use std::{
    collections::HashMap,
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use remuda_domain::{
    Code, Cursor, Event, EventBody, MessageId, Pool, Run, RunId, RunInput, RunState, SessionId, StepId,
    TenantId, ToolCallId, WorkerId, WorkspaceId,
    event::NewEvent,
    execution::ExecutionChoice,
    message::{Part, Role},
    page::PageRequest,
    permission::SessionPermissions,
    run::{MessageInput, ParkReason, RunEnd, ToolsInput},
    session::{Session, SessionRef},
    step::{CallLinks, Step, StepWork},
    tool::{CallStatus, ToolCall, ToolOutcome},
    worker::Registration,
};
use remuda_store::{
    Claim, Commit, Finish, Grant, Idempotency, NewMessage, NewRun, NewSession, Options, ParkRequest,
    RunFilter, RunTransition, SlotProvider, SlotReservation, Store, Submitted, connect, migrate,
};
use remuda_testkit::{TestDatabase, wait_for};
use sqlx::Connection as _;
use tempfile::TempDir;

/// Long enough for a loaded machine; a test that waits longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(60);
/// Expires soon, but not before a test has claimed a session.
pub(crate) const SHORT_LEASE: Duration = Duration::from_millis(400);

/// The database of a test; dropped with it.
pub(crate) enum TestDb {
    Directory(TempDir),
    Database(TestDatabase),
    /// A directory that the test owns.
    Existing(PathBuf),
}

impl TestDb {
    pub(crate) fn sqlite() -> Result<Self> {
        Ok(Self::Directory(tempfile::tempdir()?))
    }

    pub(crate) fn postgres() -> Result<Self> {
        Ok(Self::Database(TestDatabase::create()?))
    }

    pub(crate) fn options(&self) -> Options {
        let url = match self {
            Self::Directory(directory) => sqlite_url(directory.path()),
            Self::Existing(directory) => sqlite_url(directory),
            Self::Database(database) => database.url(),
        };
        Options { connect_timeout: PATIENCE, ..Options::new(url) }
    }
}

fn sqlite_url(directory: &Path) -> String {
    format!("sqlite:{}", directory.join("remuda.db").display())
}

/// The slot provider of a test, which may be set after the store is open. A test retires it by dropping it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestSlots(Arc<Mutex<Option<Weak<dyn SlotProvider>>>>);

impl TestSlots {
    pub(crate) fn set(&self, provider: Weak<dyn SlotProvider>) {
        *self.0.lock() = Some(provider);
    }
}

impl SlotProvider for TestSlots {
    fn reserve_slot(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn SlotReservation>> {
        self.0.lock().as_ref()?.upgrade()?.reserve_slot(pool, session)
    }
}

pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: TenantId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) slots: TestSlots,
    // After the store, because fields are dropped in declaration order.
    database: TestDb,
}

impl Fixture {
    pub(crate) async fn sqlite() -> Result<Self> {
        Self::on(TestDb::sqlite()?).await
    }

    pub(crate) async fn postgres() -> Result<Self> {
        Self::on(TestDb::postgres()?).await
    }

    pub(crate) async fn on(database: TestDb) -> Result<Self> {
        migrate(&database.options()).await?;
        Self::existing(database).await
    }

    /// On a database that has been migrated.
    pub(crate) async fn existing(database: TestDb) -> Result<Self> {
        let slots = TestSlots::default();
        let options = Options { slots: Arc::new(slots.clone()), ..database.options() };
        let store = connect(&options).await?;
        let (tenant, workspace) = tenant(&*store, "acme").await?;
        Ok(Self { store, tenant, workspace, slots, database })
    }

    pub(crate) fn options(&self) -> Options {
        self.database.options()
    }

    /// Reopens the store on PostgreSQL after all its connections have closed, so that their statistics are reported.
    pub(crate) async fn reopened(self) -> Result<Self> {
        let Self { store, tenant, workspace, slots, database } = self;
        drop(store);
        let url = database.options().url;
        wait_for("the end of connections", PATIENCE, || async {
            let mut connection = sqlx::PgConnection::connect(&url).await.ok()?;
            let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                          AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
            let others: i64 = sqlx::query_scalar(others).fetch_one(&mut connection).await.ok()?;
            (others == 0).then_some(())
        })
        .await;
        let options = Options { slots: Arc::new(slots.clone()), ..database.options() };
        let store = connect(&options).await?;
        Ok(Self { store, tenant, workspace, slots, database })
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.database, TestDb::Database(_))
    }

    /// An empty database of the same backend.
    pub(crate) fn empty_database(&self) -> Result<TestDb> {
        if self.is_postgres() { TestDb::postgres() } else { TestDb::sqlite() }
    }

    /// The id of another tenant.
    pub(crate) async fn stranger(&self) -> Result<TenantId> {
        Ok(tenant(&*self.store, "stranger").await?.0)
    }

    pub(crate) fn new_session(&self, name: Option<&str>) -> NewSession {
        NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: self.workspace,
            parent: None,
            name: name.map(str::to_owned),
            title: "a title".into(),
            pool: Pool::default(),
            execution: ExecutionChoice::default(),
            agent: None,
            model: None,
            permissions: SessionPermissions::default(),
            budget: None,
        }
    }

    pub(crate) async fn session(&self) -> Result<SessionId> {
        Ok(self.store.create_session(&self.new_session(None)).await?.value.id)
    }

    pub(crate) async fn get_session(&self, session: SessionId) -> Result<Session> {
        Ok(self.store.get_session(self.tenant, &SessionRef::Id(session)).await?)
    }

    pub(crate) fn new_run(&self, session: SessionId) -> NewRun {
        NewRun::from(Run::queued(
            RunId::new(),
            (self.tenant, session),
            input("noop"),
            Duration::from_secs(60),
        ))
    }

    pub(crate) fn keyed_run(&self, session: SessionId, key: &str, hash: u8) -> NewRun {
        let idempotency = Some(Idempotency { key: key.to_owned(), request_hash: [hash; 32] });
        NewRun { idempotency, ..self.new_run(session) }
    }

    pub(crate) async fn submit(&self, session: SessionId) -> Result<Submitted> {
        Ok(self.store.submit(self.new_run(session)).await?)
    }

    pub(crate) async fn run(&self, run: RunId) -> Result<Run> {
        Ok(self.store.get_run(self.tenant, run).await?)
    }

    pub(crate) async fn worker(&self, lease: Duration) -> Result<WorkerId> {
        let registration = registration(Pool::default(), 4);
        self.store.register_worker(&registration, lease).await?;
        Ok(registration.id)
    }

    pub(crate) async fn claim(&self, session: SessionId, worker: WorkerId) -> Result<Claim> {
        Ok(self.store.claim(self.tenant, session, worker).await?)
    }

    /// Claims a session that must be granted, if necessary after it was reclaimed from a lost worker.
    pub(crate) async fn granted(&self, session: SessionId, worker: WorkerId) -> Result<Grant> {
        let mut claim = self.claim(session, worker).await?;
        if matches!(claim, Claim::Reclaimed(_)) {
            claim = self.claim(session, worker).await?;
        }
        match claim {
            Claim::Granted(grant) => Ok(*grant),
            other => anyhow::bail!("expected a grant, got {other:?}"),
        }
    }

    /// Waits until the store considers the worker's lease expired.
    pub(crate) async fn wait_for_lease_expiry(&self, worker: WorkerId) {
        wait_for("the end of a lease", PATIENCE, || async {
            let alive = self.store.list_workers(false).await;
            alive.is_ok_and(|alive| alive.iter().all(|it| it.registration.id != worker))
        })
        .await;
    }

    pub(crate) async fn runs_of(&self, session: SessionId) -> Result<Vec<Run>> {
        let filter = RunFilter { session: Some(session), ..RunFilter::default() };
        let mut runs = Vec::new();
        let mut page = PageRequest { size: 100, token: None };
        loop {
            let got = self.store.list_runs(self.tenant, &filter, &page).await?;
            runs.extend(got.items);
            page.token = got.next;
            if page.token.is_none() {
                runs.sort_by_key(|run| run.seq);
                return Ok(runs);
            }
        }
    }

    /// Reads the whole stream in small slices.
    pub(crate) async fn events_of(&self, session: SessionId) -> Result<Vec<Event>> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event.cursor);
            let slice = self.store.read_events(self.tenant, session, after, 7).await?;
            if slice.events.is_empty() {
                ensure!(slice.last_cursor == after, "the stream ends at {}, not {after}", slice.last_cursor);
                return Ok(events);
            }
            events.extend(slice.events);
        }
    }

    /// Checks the invariants of a session: consecutive sequence numbers, consecutive cursors, one queued event and at
    /// most one terminal event per run.
    pub(crate) async fn check(&self, session: SessionId) -> Result<()> {
        let (found, runs, events) =
            (self.get_session(session).await?, self.runs_of(session).await?, self.events_of(session).await?);
        let expected: Vec<Cursor> = (1..).take(events.len()).collect();
        let cursors: Vec<Cursor> = events.iter().map(|event| event.cursor).collect();
        ensure!(cursors == expected, "cursors have gaps: {cursors:?}");
        ensure!(
            found.last_cursor == cursors.last().copied().unwrap_or(0),
            "the head knows another last cursor"
        );
        let seqs: Vec<i64> = runs.iter().map(|run| run.seq).collect();
        ensure!(seqs == (1..).take(runs.len()).collect::<Vec<i64>>(), "sequence numbers have gaps: {seqs:?}");
        let live = runs.iter().filter(|run| !run.state.is_terminal()).count();
        ensure!(i64::try_from(live)? == found.pending, "{live} runs live, pending is {}", found.pending);
        let (mut begins, mut ends) = (HashMap::new(), HashMap::new());
        for event in &events {
            if let EventBody::RunQueued { seq, .. } = &event.body {
                ensure!(begins.insert(event.run, *seq).is_none(), "two queued events: {event:?}");
            }
            if let Some(state) = event.body.terminal_state() {
                ensure!(ends.insert(event.run, state).is_none(), "two terminal events: {event:?}");
            }
        }
        for run in &runs {
            ensure!(begins.get(&Some(run.id)) == Some(&run.seq), "no queued event of {run:?}");
            let end = ends.get(&Some(run.id)).copied();
            ensure!(end == Some(run.state).filter(|state| state.is_terminal()), "{run:?} ended as {end:?}");
        }
        ensure!(begins.len() == runs.len(), "events of runs that do not exist");
        Ok(())
    }

    /// Like [`Self::check`], for sessions with changes in progress. `check` reads more than once and may see such a
    /// change in part, so it is retried; a permanent violation still fails.
    pub(crate) async fn check_eventually(&self, session: SessionId) -> Result<()> {
        let give_up_at = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.check(session).await {
                Err(_) if tokio::time::Instant::now() < give_up_at => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                outcome => return outcome,
            }
        }
    }
}

async fn tenant(store: &dyn Store, name: &str) -> Result<(TenantId, WorkspaceId)> {
    let tenant = store.ensure_tenant(name, "/srv/root").await?.id;
    let workspace = store.find_workspace(tenant, "default").await?.context("no default workspace")?;
    Ok((tenant, workspace.id))
}

pub(crate) fn registration(pool: Pool, slots: u32) -> Registration {
    Registration {
        id: WorkerId::new(),
        host: "host".into(),
        version: "0.1.0".into(),
        pool,
        slots,
        bus_secret: None,
    }
}

/// The code of an expected error.
pub(crate) fn refusal<T: Debug>(outcome: remuda_domain::Result<T>) -> Code {
    match outcome {
        Err(error) => error.code(),
        Ok(value) => panic!("expected an error, got {value:?}"),
    }
}

pub(crate) fn call(tool: &str) -> ToolCall {
    ToolCall {
        id: ToolCallId::new(),
        tool: tool.to_owned(),
        arguments: serde_json::json!({ "tool": tool }),
        parallel: false,
        timeout: None,
    }
}

pub(crate) fn input(tool: &str) -> RunInput {
    RunInput::Tools(ToolsInput { calls: vec![call(tool)], continue_on_error: false, record: false })
}

/// A message to an agent.
pub(crate) fn message_input(text: &str) -> MessageInput {
    MessageInput { id: MessageId::new(), parts: vec![Part::text(text)], agent: None }
}

pub(crate) fn outcome(call: &ToolCall, output: &str) -> ToolOutcome {
    ToolOutcome { output: output.into(), ..ToolOutcome::without_result(call, CallStatus::Completed, None) }
}

/// An unfinished step of a grant's run.
pub(crate) fn step(grant: &Grant, index: u32) -> Step {
    Step {
        id: StepId::new(),
        index,
        work: announced(call(&format!("tool{index}"))),
        started_at: chrono::Utc::now(),
        finished_at: None,
        epoch: grant.fence.epoch,
    }
}

/// The work of a step whose call has no outcome yet.
pub(crate) fn announced(call: ToolCall) -> StepWork {
    StepWork::ToolCall { call, outcome: None, links: CallLinks::default() }
}

/// The tool call of a step; panics for other steps.
pub(crate) fn call_of(step: &Step) -> &ToolCall {
    match step.call() {
        Some(call) => call,
        None => panic!("not a tool call: {step:?}"),
    }
}

pub(crate) fn done(step: &Step, output: &str) -> Step {
    let call = call_of(step).clone();
    let outcome = Some(outcome(&call, output));
    let work = StepWork::ToolCall { outcome, call, links: CallLinks::default() };
    Step { work, finished_at: Some(chrono::Utc::now()), ..step.clone() }
}

/// A commit that writes steps and one event for each, and continues the run.
pub(crate) fn progress(grant: &Grant, steps: Vec<Step>) -> Commit {
    let started = |call: &ToolCall| NewEvent {
        run: Some(grant.run.id),
        at: chrono::Utc::now(),
        body: EventBody::ToolStarted { call: call.id, tool: call.tool.clone() },
    };
    let events = steps.iter().filter_map(Step::call).map(started).collect();
    Commit { steps, events, ..Commit::new(grant.fence, grant.run.id, RunTransition::Continue) }
}

/// A commit that parks the run until it is resumed explicitly.
pub(crate) fn parking(grant: &Grant, reason: ParkReason) -> Commit {
    Commit::new(grant.fence, grant.run.id, RunTransition::Park(ParkRequest::on(reason)))
}

/// A message for the transcript.
pub(crate) fn message(role: Role, text: &str) -> NewMessage {
    NewMessage { id: MessageId::new(), role, agent: None, parts: vec![Part::text(text)] }
}

/// A commit that writes messages and one event for each, and continues the run.
pub(crate) fn saying(grant: &Grant, messages: Vec<NewMessage>) -> Commit {
    let said = |message: &NewMessage| NewEvent {
        run: Some(grant.run.id),
        at: chrono::Utc::now(),
        body: EventBody::MessageCompleted {
            message: message.id,
            role: message.role,
            agent: message.agent.clone(),
            parts: message.parts.clone(),
        },
    };
    let events = messages.iter().map(said).collect();
    Commit { messages, events, ..progress(grant, Vec::new()) }
}

pub(crate) fn ending(grant: &Grant, state: RunState) -> Commit {
    let end = RunEnd { state, outcomes: Vec::new(), failure: None };
    let started_at = grant.run.started_at.unwrap_or_default();
    let finish = Finish { end, started_at: Some(started_at), stopped_ago: None, release: false, agent: None };
    Commit { then: RunTransition::End(finish), ..progress(grant, Vec::new()) }
}

pub(crate) fn completed(grant: &Grant) -> Commit {
    ending(grant, RunState::Completed)
}

pub(crate) fn completed_with_release(grant: &Grant) -> Commit {
    let mut commit = completed(grant);
    if let RunTransition::End(finish) = &mut commit.then {
        finish.release = true;
    }
    commit
}

pub(crate) fn page(size: u32) -> PageRequest {
    PageRequest { size, token: None }
}

pub(crate) fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.name()).collect()
}

/// The same run, of another tenant.
pub(crate) fn of_tenant(tenant: TenantId, run: NewRun) -> NewRun {
    NewRun { run: Run { tenant, ..run.run }, ..run }
}
