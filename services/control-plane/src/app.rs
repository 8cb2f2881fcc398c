//! The application layer: what callers can do, whatever protocol they speak.

mod approvals;
mod artifacts;
mod budgets;
mod cancel;
mod execution;
mod explain;
mod fleet;
mod overview;
mod runs;
mod sessions;
mod to_the_end;
mod trace;
mod wait;
mod webhooks;
mod workspaces;

use std::{collections::BTreeSet, future::Future, sync::Arc};

pub use artifacts::Artifact;
pub use budgets::Spender;
pub use explain::{Estimate, Explanation, PoolPlace, Receipt, StepGlance, Wait};
pub use overview::{Overview, RunLine};
use remuda_domain::{PlaneId, error::Result, execution::Policies};
use remuda_store::{FleetView, Kept, Seats, Store};
use remuda_transport::Transport;
pub use runs::{Submission, SubmitReceipt};
pub use sessions::{Making, SessionSpec};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::to_the_end::ToTheEnd;
pub(crate) use self::wait::Named;
pub use self::webhooks::{TestDelivery, WebhookSpec, WithSecret};
use crate::{
    alarm::Alarm,
    dispatch::Dispatch,
    logs::ProcessLogs,
    waker::Waker,
    webhooks::{Bell, Courier, WebhookOptions},
};

const INPUT_ROOM_KIB: usize = 128 * 1024;

/// Checks the arguments of a tool call before the run is accepted.
pub type CheckCall = Arc<dyn Fn(&remuda_domain::tool::ToolCall) -> Result<()> + Send + Sync>;

/// What the application layer is made of.
#[derive(Clone)]
pub struct AppOptions {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
    /// The tools that runs may call.
    pub tools: BTreeSet<String>,
    pub check_call: CheckCall,
    /// Where the sessions of which tenant may execute.
    pub policies: Arc<Policies>,
    pub webhooks: WebhookOptions,
    /// What this process logs.
    pub logs: ProcessLogs,
}

impl std::fmt::Debug for AppOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppOptions").field("tools", &self.tools).finish_non_exhaustive()
    }
}

/// The application layer. Cheap to clone.
#[derive(Clone)]
pub struct App {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    tools: Arc<BTreeSet<String>>,
    check_call: CheckCall,
    policies: Arc<Policies>,
    waker: Waker,
    /// Grants sessions to workers that offer room. The store asks it, for as long as it is here.
    _dispatch: Option<Arc<Dispatch>>,
    /// Rings when a wake-up may have been lost.
    alarm: Alarm,
    /// Delivers to webhooks.
    courier: Arc<Courier>,
    /// Rings when a webhook may have something to be told.
    bell: Bell,
    /// Tests of webhooks at once.
    test_room: Arc<Semaphore>,
    tasks: TaskTracker,
    logs: ProcessLogs,
    /// Who waits for the end of which run.
    ends: Arc<wait::Ends>,
    /// The same, of those who are told by name.
    named: Arc<Named>,
    /// The last look at the fleet.
    fleet: Arc<Kept<FleetView>>,
    /// Kibibytes of input that may be on their way to the store at once: what bounds memory under a flood of submits.
    input_room: Arc<Semaphore>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("tools", &self.tools).finish_non_exhaustive()
    }
}

impl App {
    /// `tasks` carries what must finish after its caller went away; whoever shuts down waits for it.
    #[must_use]
    pub fn new(options: AppOptions, tasks: TaskTracker) -> Self {
        let alarm = Alarm::default();
        let plane = PlaneId::new();
        let named = Named::start(plane, &tasks, &options.transport);
        let waker =
            Waker::start(&tasks, &options.store, &options.transport, alarm.clone(), Arc::clone(&named));
        let dispatch = Dispatch::start(plane, &tasks, &options.transport);
        if let Some(dispatch) = &dispatch {
            let seats: Arc<dyn Seats> = dispatch.clone();
            options.store.stand_by(Arc::downgrade(&seats));
        }
        Self {
            _dispatch: dispatch,
            ends: Arc::new(wait::Ends::new(Arc::clone(&options.transport), tasks.clone())),
            named,
            store: options.store,
            transport: options.transport,
            tools: Arc::new(options.tools),
            check_call: options.check_call,
            policies: options.policies,
            waker,
            alarm,
            courier: Arc::new(Courier::new(options.webhooks)),
            bell: Bell::default(),
            test_room: Arc::new(Semaphore::new(webhooks::MAX_TESTS)),
            tasks,
            logs: options.logs,
            fleet: Arc::default(),
            input_room: Arc::new(Semaphore::new(INPUT_ROOM_KIB)),
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    pub(crate) fn courier(&self) -> &Arc<Courier> {
        &self.courier
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    #[must_use]
    pub fn tools(&self) -> &BTreeSet<String> {
        &self.tools
    }

    /// Runs a change to its end, announcements included, even if the caller hangs up.
    fn to_the_end<T>(&self, change: impl Future<Output = Result<T>> + Send + 'static) -> ToTheEnd<T> {
        ToTheEnd::new(&self.tasks, change)
    }
}
