use std::{collections::BTreeSet, sync::Arc, time::Duration};

use remuda_dispatch::{Dispatcher, Slots};
use remuda_domain::{
    MessageId, Pool, Run, RunInput, WorkerId, WorkspaceId,
    budget::Limit,
    identity::{Principal, Scope},
    message::Part,
    run::MessageInput,
    worker::Registration,
};
use remuda_store::{
    BudgetTarget, ChildSession, Claim, Commit, Grant, NewChild, NewRun, NewSession, Options, ParkRequest,
    RunTransition, Store,
};
use remuda_transport::{Memory, Transport};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

use super::*;
use crate::app::AppOptions;

#[test]
fn budget_wait_states_the_amounts_and_the_command() {
    let budget = Budget {
        limit: Limit { tokens: Some(1000), micros: Some(2_500_000) },
        spent: Amount { tokens: 900, micros: 10 },
        reserved: Amount { tokens: 50, micros: 0 },
    };
    let needed = Amount { tokens: 5000, micros: 40 };
    let wait = budget_wait("run", "run_1", budget, needed);
    assert_eq!(
        wait.message,
        "the next model call does not fit into the budget of the run: 900 of 1000 tokens are spent, 50 are reserved, the \
         call may take 5000; $0.00001 of $2.50 are spent, the call may take $0.00004"
    );
    assert_eq!(wait.hint, "remuda budget set run_1 --tokens 5950 --cost 5.00");
}

const MINUTE: Duration = Duration::from_secs(60);

const fn tokens(tokens: u64) -> Limit {
    Limit { tokens: Some(tokens), micros: None }
}

fn input() -> RunInput {
    let parts = vec![Part::text("look")];
    RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None })
}

/// A store, and an application on it.
struct Fixture {
    store: Arc<dyn Store>,
    app: App,
    tenant: TenantId,
    workspace: WorkspaceId,
    worker: WorkerId,
    // After the store: fields are dropped in declaration order.
    _directory: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(format!("sqlite:{}", directory.path().join("remuda.db").display()));
        remuda_store::migrate(&options).await.unwrap();
        let store = remuda_store::connect(&options).await.unwrap();
        let tenant = store.ensure_tenant("acme", "/nonexistent").await.unwrap().id;
        let workspace = store.find_workspace(tenant, "default").await.unwrap().unwrap().id;
        let transport: Arc<dyn Transport> = Arc::new(Memory::new());
        let app = AppOptions {
            logs: crate::ProcessLogs::new(
                remuda_telemetry::Levels::new("info").unwrap(),
                "test",
                "test",
                &[],
            ),
            store: Arc::clone(&store),
            transport: Arc::clone(&transport),
            dispatcher: Dispatcher::new(Arc::clone(&store), transport, Slots::default()),
            tools: BTreeSet::new(),
            check_call: Arc::new(|_| Ok(())),
            policies: Arc::default(),
            workspace_roots: remuda_roots::WorkspaceRoots::new(&remuda_roots::RootOptions::default()),
            webhooks: crate::WebhookOptions::default(),
        };
        let app = App::new(app, TaskTracker::new());
        let worker = WorkerId::new();
        let (host, version) = ("lab".to_owned(), "0".to_owned());
        let registration =
            Registration { id: worker, host, version, pool: Pool::default(), slots: 4, bus_secret: None };
        store.register_worker(&registration, MINUTE).await.unwrap();
        Self { store, app, tenant, workspace, worker, _directory: directory }
    }

    async fn session(&self, parent: Option<SessionId>, budget: Limit) -> SessionId {
        let session = NewSession {
            id: SessionId::new(),
            tenant: self.tenant,
            workspace: self.workspace,
            parent,
            name: None,
            title: String::new(),
            pool: Pool::default(),
            execution: Default::default(),
            agent: None,
            model: None,
            permissions: Default::default(),
            budget: Some(budget),
        };
        self.store.create_session(&session).await.unwrap().value.id
    }

    async fn submit(&self, session: SessionId, budget: Limit) -> Grant {
        let run = NewRun {
            budget: Some(budget),
            ..NewRun::from(Run::queued(RunId::new(), (self.tenant, session), input(), MINUTE))
        };
        self.store.submit(run).await.unwrap();
        self.claim(session).await
    }

    async fn claim(&self, session: SessionId) -> Grant {
        match self.store.claim(self.tenant, session, self.worker).await.unwrap() {
            Claim::Granted(grant) => *grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    /// A child run that the worker has claimed.
    async fn child(&self, parent: &Grant) -> Grant {
        let session = SessionId::new();
        let new_session = ChildSession {
            title: String::new(),
            agent: "explore".to_owned(),
            model: None,
            permissions: Default::default(),
        };
        let child = NewChild {
            new_session: Some(new_session),
            permissions: None,
            run: Run::queued(RunId::new(), (self.tenant, session), input(), MINUTE),
        };
        let commit = Commit::new(parent.fence, parent.run.id, RunTransition::Continue);
        self.store.commit(Commit { children: vec![child], ..commit }).await.unwrap();
        self.claim(session).await
    }

    /// The ids in the waits of a run.
    async fn waits_of(&self, run: RunId) -> Vec<String> {
        let scopes = vec![Scope::Read];
        let caller = Principal { tenant: self.tenant, subject: "anna".to_owned(), scopes };
        self.app.explain(&caller, run).await.unwrap().waits.into_iter().map(|wait| wait.id).collect()
    }
}

#[tokio::test]
async fn every_exhausted_budget_is_listed() {
    let fixture = Fixture::new().await;
    let top = fixture.session(None, tokens(10)).await;
    let middle = fixture.session(Some(top), tokens(1000)).await;
    let root = fixture.submit(middle, tokens(10)).await;
    let below = fixture.child(&root).await;
    let lowest = fixture.child(&below).await;
    let of = BudgetTarget::Run(below.run.id);
    fixture.store.set_budget(fixture.tenant, of, tokens(1000)).await.unwrap();
    let amount = Some(Amount { tokens: 20, micros: 0 });
    let parking = ParkRequest { amount, ..ParkRequest::on(ParkReason::Budget) };
    let run = lowest.run.id;
    fixture.store.commit(Commit::new(lowest.fence, run, RunTransition::Park(parking))).await.unwrap();
    // The nearest budgets have room; those above them cover the run, too.
    let (root, top) = (root.run.id, top);
    assert_eq!(fixture.waits_of(run).await, [root.to_string(), top.to_string()]);
    fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(root), tokens(1000)).await.unwrap();
    assert_eq!(fixture.waits_of(run).await, [top.to_string()]);
    fixture.store.set_budget(fixture.tenant, of, tokens(5)).await.unwrap();
    assert_eq!(fixture.waits_of(run).await, [below.run.id.to_string(), top.to_string()]);
}
