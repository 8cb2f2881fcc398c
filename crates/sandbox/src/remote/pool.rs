//! Pool of containers: assigns containers to sessions.

mod maintenance;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::{
    SandboxId, SessionId, TenantId, WorkerId,
    error::{Code, Error, Result},
    execution::{Holder, WorkspaceAccess},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use super::instance::{Container, ContainerHandle, DockerContext};
use super::instance_limit::{ContainerLimit, ContainerPermit};
use super::labels::{self, Creator};
use crate::docker::create::{ContainerPlan, ContainerSpec, check_network};
use crate::docker::engine::Engine;
use crate::docker::image::{self, Image};
use crate::docker::options::DockerOptions;
use crate::docker::supervisor_volume::SupervisorVolume;
use crate::traits::{EngineResource, EngineResourceKind, SandboxRequest};

/// How long an acquisition waits for a concurrent one of the same session.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an acquisition waits for the removal of another container at the limit.
const CAPACITY_TIMEOUT: Duration = Duration::from_secs(30);

/// No engine requests for this long after a spare was assigned, so that the first command is fast.
const FIRST_COMMAND_QUIET_TIME: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) context: Arc<DockerContext>,
    pub(crate) options: DockerOptions,
    instance: String,
    limit: ContainerLimit,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sessions: HashMap<(TenantId, SessionId), Arc<SessionEntry>>,
    spares: Vec<Arc<Container>>,
    /// When the last spare was assigned.
    spare_taken_at: Option<Instant>,
    /// Worker id for spares.
    worker: WorkerId,
    /// Watchdog deadline of the last feed.
    watchdog_deadline: Option<Instant>,
    /// All containers are being removed.
    closed: bool,
}

/// The container of one session.
#[derive(Debug)]
struct SessionEntry {
    /// Held while the container is being changed.
    exclusive: Arc<Semaphore>,
    container: Mutex<Option<Arc<Container>>>,
}

impl SessionEntry {
    fn new() -> Self {
        Self { exclusive: Arc::new(Semaphore::new(1)), container: Mutex::default() }
    }

    fn get(&self) -> Option<Arc<Container>> {
        self.lock().clone()
    }

    /// Replaces the container. Returns the previous one, to be dropped by the caller.
    fn replace(&self, container: Option<Arc<Container>>) -> Option<Arc<Container>> {
        std::mem::replace(&mut *self.lock(), container)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Container>>> {
        self.container.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub(crate) fn new(options: DockerOptions) -> Self {
        // Ids are unique and consist of plain characters, as an instance name must.
        let instance = SandboxId::new().to_string();
        let context = DockerContext {
            engine: Engine::new(options.host.clone()),
            volume: SupervisorVolume::new(&instance),
            tasks: TaskTracker::new(),
            registry: options.registry.clone(),
        };
        let state = State {
            sessions: HashMap::new(),
            spares: Vec::new(),
            spare_taken_at: None,
            worker: options.worker,
            watchdog_deadline: None,
            closed: false,
        };
        let limit = ContainerLimit::new(options.max_containers);
        Self { context: Arc::new(context), options, instance, limit, state: Mutex::new(state) }
    }

    pub(crate) fn spec(request: &SandboxRequest) -> Result<ContainerSpec> {
        let policy = &request.policy;
        check_network(&policy.network)?;
        let image = policy.image.clone();
        Ok(ContainerSpec {
            image: image
                .ok_or_else(|| Error::invalid("image", "expected an image for the docker backend"))?,
            network: policy.network.clone(),
            limits: policy.limits,
            mount: match policy.workspace {
                WorkspaceAccess::Mount => Some(request.workspace_root.clone()),
                WorkspaceAccess::Copy => None,
            },
        })
    }

    /// Returns the session's container, existing or new.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &SandboxRequest) -> Result<ContainerHandle> {
        let spec = Self::spec(request)?;
        let entry = self.entry(request)?;
        let exclusive_permit = timeout(EXCLUSIVE_TIMEOUT, Arc::clone(&entry.exclusive).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Error::unavailable("the session's sandbox is still being created"))?;
        if let Some(handle) = self.reuse(&entry, request, &spec).await? {
            return Ok(handle);
        }
        // In a task: if the caller gives up, a half-created container would have no owner.
        let (answer, made) = oneshot::channel();
        let (pool, request) = (Arc::clone(self), request.clone());
        self.context.tasks.spawn(async move {
            let made = pool.assign_container(&request, spec).await.map(|container| {
                drop(entry.replace(Some(Arc::clone(&container))));
                ContainerHandle::new(container)
            });
            if answer.send(made).is_err() {
                drop(entry.replace(None));
            }
            drop::<OwnedSemaphorePermit>(exclusive_permit);
        });
        made.await.unwrap_or_else(|_| Err(closing()))
    }

    /// Returns the session's existing container, if it matches the request.
    async fn reuse(
        &self,
        entry: &SessionEntry,
        request: &SandboxRequest,
        spec: &ContainerSpec,
    ) -> Result<Option<ContainerHandle>> {
        let Some(container) = entry.get() else { return Ok(None) };
        if request.epoch < container.epoch() {
            return Err(superseded());
        }
        // If another worker owned the session in between, it may still remove containers of older epochs.
        let owned_since = request.epoch <= container.epoch() + 1;
        let matches =
            owned_since && container.spec == *spec && container.serves_workspace(&request.workspace_root);
        if !container.connection.alive() || !matches {
            if container.connection.alive() && container.idle_since().is_none() {
                return Err(Error::unavailable(
                    "the session's sandbox is in use, by another claim or policy",
                ));
            }
            drop(entry.replace(None));
            return Ok(None);
        }
        // In use from here on.
        let handle = ContainerHandle::new(container);
        if handle.is_paused() {
            if let Err(error) = handle.unpause(&self.context).await {
                tracing::warn!(error = error.chain(), sandbox = %handle.sandbox, "cannot unpause a container; replacing it");
                drop(entry.replace(None));
                return Ok(None);
            }
            self.feed_container(&handle);
        }
        handle.set_epoch(request.epoch);
        Ok(Some(handle))
    }

    async fn assign_container(
        self: &Arc<Self>,
        request: &SandboxRequest,
        spec: ContainerSpec,
    ) -> Result<Arc<Container>> {
        let holder = holder(request);
        if let Some(spare) = self.take_spare(&spec) {
            spare.set_epoch(holder.epoch);
            self.record_holder(Arc::clone(&spare), holder);
            return self.activate(spare);
        }
        let image = image::find(&self.context.engine, Some(&spec.image)).await?;
        let sandbox = SandboxId::new();
        let permit = self.take_permit(sandbox).await?;
        // Before, so that an older owner's commands are dead when ours start; after, because it may create
        // one in the meantime.
        self.remove_other_containers(&holder, sandbox).await?;
        let plan = self.plan(sandbox, Some(holder), request.worker, image, spec);
        let container = Arc::new(Container::make(&self.context, &plan, permit).await?);
        self.remove_other_containers(&holder, sandbox).await?;
        self.activate(container)
    }

    /// Records the holder of a spare on the engine and in the registry, in the background. The first command
    /// does not wait for that: an older owner's commands are already dead, because its lease expired; this
    /// only cleans up its containers.
    fn record_holder(self: &Arc<Self>, spare: Arc<Container>, holder: Holder) {
        let pool = Arc::clone(self);
        self.context.tasks.spawn(async move {
            // The first command should not compete for the engine.
            tokio::time::sleep(FIRST_COMMAND_QUIET_TIME).await;
            let recorded = async {
                spare.assign_to(&pool.context, &holder).await?;
                pool.remove_other_containers(&holder, spare.sandbox).await
            };
            match recorded.await {
                Ok(()) => {}
                Err(error) if error.code() == Code::OwnershipLost => {
                    spare.connection.close("a newer owner has the session")
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot record the holder of a container")
                }
            }
        });
    }

    fn activate(&self, container: Arc<Container>) -> Result<Arc<Container>> {
        if self.lock().closed {
            return Err(closing());
        }
        self.feed_container(&container);
        Ok(container)
    }

    fn plan(
        &self,
        sandbox: SandboxId,
        holder: Option<Holder>,
        worker: WorkerId,
        image: Image,
        spec: ContainerSpec,
    ) -> ContainerPlan {
        ContainerPlan {
            sandbox,
            creator: self.creator(worker),
            holder,
            image,
            spec,
            user: self.options.user,
            runtime: self.options.runtime.clone(),
            volume: self.context.volume.name().to_owned(),
        }
    }

    fn creator(&self, worker: WorkerId) -> Creator {
        Creator { installation: self.options.installation.clone(), instance: self.instance.clone(), worker }
    }

    /// Removes the session's other containers on this engine. Fails if one belongs to a newer owner.
    async fn remove_other_containers(&self, holder: &Holder, own: SandboxId) -> Result<()> {
        for other_container in self.find(&[("name", holder.session.to_string())]).await? {
            let Some(other) = other_container.holder else { continue };
            if other_container.sandbox == own
                || other.session != holder.session
                || other.tenant != holder.tenant
            {
                continue;
            }
            if other.epoch > holder.epoch {
                return Err(superseded());
            }
            tracing::info!(sandbox = %other_container.sandbox, session = %other.session, epoch = other.epoch,
                "removing the container of an older owner");
            self.context.engine.remove_container(&other_container.handle).await?;
        }
        Ok(())
    }

    /// Acquires a permit for a new container. Removes an idle container if necessary.
    async fn take_permit(&self, sandbox: SandboxId) -> Result<ContainerPermit> {
        if let Some(permit) = self.limit.try_take(sandbox) {
            return Ok(permit);
        }
        let full = || {
            let message = format!("all {} containers of this worker are in use", self.options.max_containers);
            Error::new(Code::Overloaded, message)
        };
        if !self.limit.is_removing() && !self.evict() {
            return Err(full());
        }
        timeout(CAPACITY_TIMEOUT, self.limit.take(sandbox)).await.ok().flatten().ok_or_else(full)
    }

    /// Lists the containers of this installation that match.
    pub(crate) async fn find(&self, filters: &[(&str, String)]) -> Result<Vec<EngineResource>> {
        let installation = &self.options.installation;
        let mut all = filters.to_vec();
        all.push(("label", format!("{}={installation}", labels::INSTALLATION)));
        let found = self.context.engine.containers(&all).await?;
        let holders = self.holders();
        let read = |found: &bollard::models::ContainerSummary| {
            let (id, none) = (found.id.as_deref()?, HashMap::new());
            let (labels, names) = (found.labels.as_ref().unwrap_or(&none), found.names.as_deref());
            let kind = EngineResourceKind::Container;
            let mut existing = labels::existing(installation, id, kind, labels, names.unwrap_or_default())?;
            existing.ours = self.is_ours(labels, existing.sandbox);
            // For its own containers, the backend's state is newer than labels and name.
            existing.holder = holders.get(&existing.sandbox).copied().or(existing.holder);
            Some(existing)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    pub(crate) async fn find_volumes(&self) -> Result<Vec<EngineResource>> {
        let installation = &self.options.installation;
        let filters = [("label", format!("{}={installation}", labels::INSTALLATION))];
        let found = self.context.engine.volumes(&filters).await?;
        let read = |volume: &bollard::models::Volume| {
            let kind = EngineResourceKind::Volume;
            let mut existing = labels::existing(installation, &volume.name, kind, &volume.labels, &[])?;
            existing.ours = volume.name == self.context.volume.name();
            Some(existing)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    fn holders(&self) -> HashMap<SandboxId, Holder> {
        let state = self.lock();
        let holders = state.sessions.iter().filter_map(|(&(tenant, session), entry)| {
            let container = entry.get()?;
            Some((container.sandbox, Holder { tenant, session, epoch: container.epoch() }))
        });
        holders.collect()
    }

    /// Whether this backend created it, even if it no longer knows it: the backend cleans up after itself.
    fn is_ours(&self, labels: &HashMap<String, String>, sandbox: SandboxId) -> bool {
        labels.get(labels::INSTANCE).is_some_and(|instance| *instance == self.instance)
            || self.limit.contains(sandbox)
    }

    pub(crate) fn set_worker(&self, worker: WorkerId) {
        self.lock().worker = worker;
    }

    pub(crate) fn feed_watchdog(&self, until: Instant) {
        self.lock().watchdog_deadline = Some(until);
        for container in self.containers() {
            if !container.is_paused() {
                container.connection.feed_watchdog(until);
            }
        }
    }

    fn feed_container(&self, container: &Container) {
        if let Some(until) = self.lock().watchdog_deadline {
            container.connection.feed_watchdog(until);
        }
    }

    fn containers(&self) -> Vec<Arc<Container>> {
        let state = self.lock();
        state.sessions.values().filter_map(|entry| entry.get()).chain(state.spares.iter().cloned()).collect()
    }

    fn entry(&self, request: &SandboxRequest) -> Result<Arc<SessionEntry>> {
        let mut state = self.lock();
        if state.closed {
            return Err(closing());
        }
        let entry = state
            .sessions
            .entry((request.tenant, request.session))
            .or_insert_with(|| Arc::new(SessionEntry::new()));
        Ok(Arc::clone(entry))
    }

    fn take_spare(&self, spec: &ContainerSpec) -> Option<Arc<Container>> {
        let mut state = self.lock();
        state.spares.retain(|spare| spare.connection.alive());
        let found = state.spares.iter().position(|spare| spare.spec == *spec)?;
        state.spare_taken_at = Some(Instant::now());
        Some(state.spares.swap_remove(found))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn holder(request: &SandboxRequest) -> Holder {
    Holder { tenant: request.tenant, session: request.session, epoch: request.epoch }
}

fn superseded() -> Error {
    Error::new(Code::OwnershipLost, "the session's sandbox belongs to a newer owner")
}

fn closing() -> Error {
    Error::unavailable("this worker's containers are being removed")
}
