//! Pool of instances: assigns instances to sessions.

mod listing;
mod maintenance;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    SandboxId, SessionId, TenantId, WorkerId,
    error::{Code, Error, Result},
    execution::Holder,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use super::{
    instance::{Context, Instance, InstanceHandle},
    instance_limit::{InstanceLimit, InstancePermit},
    labels::Creator,
    options::RemoteOptions,
    provisioner::{Image, InstancePlan, InstanceSpec, Provisioner},
};
use crate::traits::SandboxRequest;

/// How long an acquisition waits for a concurrent one of the same session.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an acquisition waits for the removal of another instance at the limit.
const CAPACITY_TIMEOUT: Duration = Duration::from_secs(30);

/// No engine requests for this long after a spare was assigned, so that the first command is fast.
const FIRST_COMMAND_QUIET_TIME: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) context: Arc<Context>,
    pub(super) options: RemoteOptions,
    /// Identifies this backend of this process.
    backend: String,
    limit: InstanceLimit,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sessions: HashMap<(TenantId, SessionId), Arc<SessionEntry>>,
    spares: Vec<Arc<Instance>>,
    /// When the last spare was assigned.
    spare_taken_at: Option<Instant>,
    /// Worker id for spares.
    worker: WorkerId,
    /// Watchdog deadline of the last feed.
    watchdog_deadline: Option<Instant>,
    /// All instances are being removed.
    closed: bool,
}

/// The instance of one session.
#[derive(Debug)]
struct SessionEntry {
    /// Held while the instance is being changed.
    exclusive: Arc<Semaphore>,
    instance: Mutex<Option<Arc<Instance>>>,
}

impl SessionEntry {
    fn new() -> Self {
        Self { exclusive: Arc::new(Semaphore::new(1)), instance: Mutex::default() }
    }

    fn get(&self) -> Option<Arc<Instance>> {
        self.lock().clone()
    }

    /// Replaces the instance. Returns the previous one, to be dropped by the caller.
    fn replace(&self, instance: Option<Arc<Instance>>) -> Option<Arc<Instance>> {
        std::mem::replace(&mut *self.lock(), instance)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Instance>>> {
        self.instance.lock()
    }
}

impl Pool {
    pub(super) fn new(provisioner: Arc<dyn Provisioner>, options: RemoteOptions) -> Self {
        // Ids are unique and consist of plain characters, as a label must.
        let backend = SandboxId::new().to_string();
        let context = Context {
            provisioner,
            tasks: TaskTracker::new(),
            registry: options.registry.clone(),
            used: AtomicBool::new(false),
        };
        let state = State {
            sessions: HashMap::new(),
            spares: Vec::new(),
            spare_taken_at: None,
            worker: options.worker,
            watchdog_deadline: None,
            closed: false,
        };
        let limit = InstanceLimit::new(options.max_instances);
        Self { context: Arc::new(context), options, backend, limit, state: Mutex::new(state) }
    }

    /// Returns the session's instance, existing or new.
    pub(super) async fn acquire(self: &Arc<Self>, request: &SandboxRequest) -> Result<InstanceHandle> {
        let spec = self.context.provisioner.spec(request)?;
        let entry = self.entry(request)?;
        let exclusive_permit = timeout(EXCLUSIVE_TIMEOUT, Arc::clone(&entry.exclusive).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Error::unavailable("the session's sandbox is still being created"))?;
        if let Some(handle) = self.reuse(&entry, request, &spec).await? {
            return Ok(handle);
        }
        // In a task: if the caller gives up, a half-created instance would have no owner.
        let (answer, made) = oneshot::channel();
        let (pool, request) = (Arc::clone(self), request.clone());
        self.context.tasks.spawn(async move {
            let made = pool.assign_instance(&request, spec).await.map(|instance| {
                drop(entry.replace(Some(Arc::clone(&instance))));
                InstanceHandle::new(instance)
            });
            if answer.send(made).is_err() {
                drop(entry.replace(None));
            }
            drop::<OwnedSemaphorePermit>(exclusive_permit);
        });
        made.await.unwrap_or_else(|_| Err(self.closing()))
    }

    /// Returns the session's existing instance, if it matches the request.
    async fn reuse(
        &self,
        entry: &SessionEntry,
        request: &SandboxRequest,
        spec: &InstanceSpec,
    ) -> Result<Option<InstanceHandle>> {
        let Some(instance) = entry.get() else { return Ok(None) };
        if request.epoch < instance.epoch() {
            return Err(superseded());
        }
        // If another worker owned the session in between, it may still remove instances of older epochs.
        let owned_since = request.epoch <= instance.epoch() + 1;
        let matches =
            owned_since && instance.spec == *spec && instance.serves_workspace(&request.workspace_root);
        if !instance.connection.alive() || !matches {
            if instance.connection.alive() && instance.idle_since().is_none() {
                return Err(Error::unavailable(
                    "the session's sandbox is in use, by another claim or policy",
                ));
            }
            drop(entry.replace(None));
            return Ok(None);
        }
        // In use from here on.
        let handle = InstanceHandle::new(instance);
        if handle.is_paused() {
            if let Err(error) = handle.unpause(&self.context).await {
                tracing::warn!(error = error.chain(), sandbox = %handle.sandbox, "cannot unpause an instance; replacing it");
                drop(entry.replace(None));
                return Ok(None);
            }
            self.feed_instance(&handle);
        }
        handle.set_epoch(request.epoch);
        Ok(Some(handle))
    }

    async fn assign_instance(
        self: &Arc<Self>,
        request: &SandboxRequest,
        spec: InstanceSpec,
    ) -> Result<Arc<Instance>> {
        let holder = holder(request);
        if let Some(spare) = self.take_spare(&spec) {
            spare.set_epoch(holder.epoch);
            self.record_holder(Arc::clone(&spare), holder);
            return self.activate(spare);
        }
        let image = self.context.provisioner.image(&spec).await?;
        let sandbox = SandboxId::new();
        let permit = self.take_permit(sandbox).await?;
        // Before, so that an older owner's commands are dead when ours start; after, because it may create
        // one in the meantime.
        self.remove_other_instances(&holder, sandbox).await?;
        let plan = self.plan(sandbox, Some(holder), request.worker, image, spec);
        let instance = Arc::new(Instance::make(&self.context, &plan, permit).await?);
        self.remove_other_instances(&holder, sandbox).await?;
        self.activate(instance)
    }

    /// Records the holder of a spare on the engine and in the registry, in the background. The first command
    /// does not wait for that: an older owner's commands are already dead, because its lease expired; this
    /// only cleans up its instances.
    fn record_holder(self: &Arc<Self>, spare: Arc<Instance>, holder: Holder) {
        let pool = Arc::clone(self);
        self.context.tasks.spawn(async move {
            // The first command should not compete for the engine.
            tokio::time::sleep(FIRST_COMMAND_QUIET_TIME).await;
            let recorded = async {
                spare.assign_to(&pool.context, &holder).await?;
                pool.remove_other_instances(&holder, spare.sandbox).await
            };
            match recorded.await {
                Ok(()) => {}
                Err(error) if error.code() == Code::OwnershipLost => {
                    spare.connection.close("a newer owner has the session")
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot record the holder of an instance")
                }
            }
        });
    }

    fn activate(&self, instance: Arc<Instance>) -> Result<Arc<Instance>> {
        if self.lock().closed {
            return Err(self.closing());
        }
        self.feed_instance(&instance);
        Ok(instance)
    }

    fn plan(
        &self,
        sandbox: SandboxId,
        holder: Option<Holder>,
        worker: WorkerId,
        image: Image,
        spec: InstanceSpec,
    ) -> InstancePlan {
        InstancePlan { sandbox, creator: self.creator(worker), holder, image, spec }
    }

    fn creator(&self, worker: WorkerId) -> Creator {
        Creator { installation: self.options.installation.clone(), backend: self.backend.clone(), worker }
    }

    /// Removes the session's other instances on this engine. Fails if one belongs to a newer owner.
    async fn remove_other_instances(&self, holder: &Holder, own: SandboxId) -> Result<()> {
        for found in self.find(None, Some(holder.session)).await? {
            let Some(other) = found.holder else { continue };
            if found.sandbox == own || other.session != holder.session || other.tenant != holder.tenant {
                continue;
            }
            if other.epoch > holder.epoch {
                return Err(superseded());
            }
            tracing::info!(sandbox = %found.sandbox, session = %other.session, epoch = other.epoch,
                "removing the instance of an older owner");
            self.context.provisioner.remove(&found.handle).await?;
        }
        Ok(())
    }

    /// Acquires a permit for a new instance. Removes an idle instance if necessary.
    async fn take_permit(&self, sandbox: SandboxId) -> Result<InstancePermit> {
        if let Some(permit) = self.limit.try_take(sandbox) {
            return Ok(permit);
        }
        let full = || {
            let (count, noun) = (self.options.max_instances, self.context.provisioner.noun());
            let message = format!("all {count} {noun}s of this worker are in use");
            Error::new(Code::Overloaded, message)
        };
        if !self.limit.is_removing() && !self.evict() {
            return Err(full());
        }
        timeout(CAPACITY_TIMEOUT, self.limit.take(sandbox)).await.ok().flatten().ok_or_else(full)
    }

    pub(super) fn set_worker(&self, worker: WorkerId) {
        self.lock().worker = worker;
    }

    pub(super) fn feed_watchdog(&self, until: Instant) {
        self.lock().watchdog_deadline = Some(until);
        for instance in self.instances() {
            if !instance.is_paused() {
                instance.connection.feed_watchdog(until);
            }
        }
    }

    fn feed_instance(&self, instance: &Instance) {
        if let Some(until) = self.lock().watchdog_deadline {
            instance.connection.feed_watchdog(until);
        }
    }

    fn instances(&self) -> Vec<Arc<Instance>> {
        let state = self.lock();
        state.sessions.values().filter_map(|entry| entry.get()).chain(state.spares.iter().cloned()).collect()
    }

    fn entry(&self, request: &SandboxRequest) -> Result<Arc<SessionEntry>> {
        let mut state = self.lock();
        if state.closed {
            return Err(self.closing());
        }
        let entry = state
            .sessions
            .entry((request.tenant, request.session))
            .or_insert_with(|| Arc::new(SessionEntry::new()));
        Ok(Arc::clone(entry))
    }

    fn take_spare(&self, spec: &InstanceSpec) -> Option<Arc<Instance>> {
        let mut state = self.lock();
        state.spares.retain(|spare| spare.connection.alive());
        let found = state.spares.iter().position(|spare| spare.spec == *spec)?;
        state.spare_taken_at = Some(Instant::now());
        Some(state.spares.swap_remove(found))
    }

    fn closing(&self) -> Error {
        let noun = self.context.provisioner.noun();
        Error::unavailable(format!("this worker's {noun}s are being removed"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn holder(request: &SandboxRequest) -> Holder {
    Holder { tenant: request.tenant, session: request.session, epoch: request.epoch }
}

fn superseded() -> Error {
    Error::new(Code::OwnershipLost, "the session's sandbox belongs to a newer owner")
}
