//! The application layer: everything a caller can do, independent of the protocol.

mod approvals;
mod artifacts;
mod budgets;
mod cancel;
mod detach_on_drop;
mod execution;
mod explain;
mod fleet;
mod overview;
mod runs;
mod sessions;
mod trace;
mod wait;
mod webhooks;
mod workspaces;

use std::{collections::BTreeSet, future::Future, sync::Arc};

pub use artifacts::Artifact;
pub use budgets::BudgetRef;
pub use explain::{CurrentStep, Estimate, Explanation, PoolPosition, Receipt, Wait};
pub use overview::{Overview, RunOverview};
use remuda_dispatch::{Dispatcher, RemoteSlots, ServedOffers};
use remuda_domain::{ControlPlaneId, error::Result, execution::Policies};
use remuda_roots::WorkspaceRoots;
use remuda_store::{FleetView, SharedCache, Store};
use remuda_transport::Transport;
pub use runs::{Submission, SubmitReceipt};
pub use sessions::{SessionRequirements, SessionSpec};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::detach_on_drop::DetachOnDrop;
pub(crate) use self::wait::DirectWaiters;
pub use self::webhooks::{TestDelivery, WebhookSpec, WebhookWithSecret};
use crate::{
    announcer::Announcer,
    log_filters::ProcessLogs,
    lost_wakeups::LostWakeups,
    webhooks::{DeliveryNotifier, WebhookOptions, WebhookSender},
};

const MAX_INPUT_KIB: usize = 128 * 1024;

/// Checks the arguments of a tool call before the run is accepted.
pub type CheckCall = Arc<dyn Fn(&remuda_domain::tool::ToolCall) -> Result<()> + Send + Sync>;

/// The parts of the application layer.
#[derive(Clone)]
pub struct AppOptions {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
    pub dispatcher: Dispatcher,
    /// Names of the tools that runs may call.
    pub tools: BTreeSet<String>,
    pub check_call: CheckCall,
    /// Where the sessions of each tenant may execute.
    pub policies: Arc<Policies>,
    /// Which directories workspaces may have.
    pub workspace_roots: WorkspaceRoots,
    pub webhooks: WebhookOptions,
    /// The log filter of this process.
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
    dispatcher: Dispatcher,
    tools: Arc<BTreeSet<String>>,
    check_call: CheckCall,
    policies: Arc<Policies>,
    workspace_roots: Arc<WorkspaceRoots>,
    announcer: Announcer,
    /// Submits may grant sessions to workers of other processes as long as the app lives.
    _offers: Option<Arc<ServedOffers>>,
    /// Set when a wake-up may have been lost.
    lost_wakeups: LostWakeups,
    webhook_sender: Arc<WebhookSender>,
    /// Notifies the deliverer of webhooks with work.
    delivery_notifier: DeliveryNotifier,
    /// Limits concurrent webhook tests.
    test_permits: Arc<Semaphore>,
    tasks: TaskTracker,
    logs: ProcessLogs,
    /// Waiters for ends of runs, notified by events of the session.
    session_waiters: Arc<wait::SessionWaiters>,
    /// Waiters for ends of runs, notified directly.
    direct_waiters: Arc<DirectWaiters>,
    /// The cached fleet view.
    fleet: Arc<SharedCache<FleetView>>,
    /// Kibibytes of input that may be on their way to the store at once. Bounds memory under a flood of submits.
    input_permits: Arc<Semaphore>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("tools", &self.tools).finish_non_exhaustive()
    }
}

impl App {
    /// `tasks` tracks changes that must finish after their callers disconnect; shutdown waits for it.
    #[must_use]
    pub fn new(options: AppOptions, tasks: TaskTracker) -> Self {
        let lost_wakeups = LostWakeups::default();
        let plane = ControlPlaneId::new();
        let direct_waiters = DirectWaiters::start(plane, &tasks, &options.transport);
        let announcer = Announcer::start(
            &tasks,
            options.dispatcher.clone(),
            lost_wakeups.clone(),
            Arc::clone(&direct_waiters),
        );
        let offers = RemoteSlots::serve(plane, options.dispatcher.slots(), &options.transport, &tasks);
        Self {
            _offers: offers.map(Arc::new),
            session_waiters: Arc::new(wait::SessionWaiters::new(
                Arc::clone(&options.transport),
                tasks.clone(),
            )),
            direct_waiters,
            store: options.store,
            transport: options.transport,
            dispatcher: options.dispatcher,
            tools: Arc::new(options.tools),
            check_call: options.check_call,
            policies: options.policies,
            workspace_roots: Arc::new(options.workspace_roots),
            announcer,
            lost_wakeups,
            webhook_sender: Arc::new(WebhookSender::new(options.webhooks)),
            delivery_notifier: DeliveryNotifier::default(),
            test_permits: Arc::new(Semaphore::new(webhooks::MAX_TESTS)),
            tasks,
            logs: options.logs,
            fleet: Arc::default(),
            input_permits: Arc::new(Semaphore::new(MAX_INPUT_KIB)),
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    pub(crate) fn announcer(&self) -> &Announcer {
        &self.announcer
    }

    pub(crate) fn lost_wakeups(&self) -> &LostWakeups {
        &self.lost_wakeups
    }

    pub(crate) fn webhook_sender(&self) -> &Arc<WebhookSender> {
        &self.webhook_sender
    }

    pub(crate) fn delivery_notifier(&self) -> &DeliveryNotifier {
        &self.delivery_notifier
    }

    #[must_use]
    pub fn tools(&self) -> &BTreeSet<String> {
        &self.tools
    }

    /// Runs a change to completion, announcements included, even if the caller disconnects.
    fn run_to_completion<T>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> DetachOnDrop<T> {
        DetachOnDrop::new(&self.tasks, change)
    }
}
