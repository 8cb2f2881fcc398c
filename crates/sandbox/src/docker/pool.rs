//! Which session has which container.

mod keep;

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

use super::{
    container::{Container, Held, Workshop},
    create::{Plan, Shape, check_network},
    engine::Engine,
    image::{self, Image},
    labels::{self, Maker},
    options::DockerOptions,
    places::{Places, Ticket},
    supervisor_volume::SupervisorVolume,
};
use crate::traits::{Existing, ExistingKind, SandboxRequest};

/// How long an acquisition waits for another one of the same session.
const TURN_PATIENCE: Duration = Duration::from_secs(120);
/// How long it waits for a container that goes to make room.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);

/// For how long the engine is left alone after a spare was given away.
const FIRST_COMMAND: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) workshop: Arc<Workshop>,
    pub(super) options: DockerOptions,
    instance: String,
    places: Places,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slots: HashMap<(TenantId, SessionId), Arc<Slot>>,
    spares: Vec<Arc<Container>>,
    /// When the last one was given away.
    spare_taken: Option<Instant>,
    /// Who makes spares.
    worker: WorkerId,
    /// What was promised last.
    fed_until: Option<Instant>,
    /// Everything is being removed.
    closed: bool,
}

/// The container of one session.
#[derive(Debug)]
struct Slot {
    /// Held by whoever changes it.
    gate: Arc<Semaphore>,
    container: Mutex<Option<Arc<Container>>>,
}

impl Slot {
    fn new() -> Self {
        Self { gate: Arc::new(Semaphore::new(1)), container: Mutex::default() }
    }

    fn get(&self) -> Option<Arc<Container>> {
        self.lock().clone()
    }

    /// Returns what was there, to be dropped by the caller.
    fn put(&self, container: Option<Arc<Container>>) -> Option<Arc<Container>> {
        std::mem::replace(&mut *self.lock(), container)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Container>>> {
        self.container.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub(super) fn new(options: DockerOptions) -> Self {
        // Ids are unique and in plain characters, which is all that an instance's name must be.
        let instance = SandboxId::new().to_string();
        let workshop = Workshop {
            engine: Engine::new(options.host.clone()),
            volume: SupervisorVolume::new(&instance),
            tasks: TaskTracker::new(),
            book: options.book.clone(),
        };
        let state = State {
            slots: HashMap::new(),
            spares: Vec::new(),
            spare_taken: None,
            worker: options.worker,
            fed_until: None,
            closed: false,
        };
        let places = Places::new(options.max_containers);
        Self { workshop: Arc::new(workshop), options, instance, places, state: Mutex::new(state) }
    }

    pub(super) fn shape(request: &SandboxRequest) -> Result<Shape> {
        let policy = &request.policy;
        check_network(&policy.network)?;
        let image = policy.image.clone();
        Ok(Shape {
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

    /// The session's container, found again or made.
    pub(super) async fn acquire(self: &Arc<Self>, request: &SandboxRequest) -> Result<Held> {
        let shape = Self::shape(request)?;
        let slot = self.slot(request)?;
        let turn = timeout(TURN_PATIENCE, Arc::clone(&slot.gate).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Error::unavailable("the session's sandbox is still being made"))?;
        if let Some(held) = self.reuse(&slot, request, &shape).await? {
            return Ok(held);
        }
        // In a task: a container that is being made when the caller gives up would be nobody's otherwise.
        let (answer, made) = oneshot::channel();
        let (pool, request) = (Arc::clone(self), request.clone());
        self.workshop.tasks.spawn(async move {
            let made = pool.make_for(&request, shape).await.map(|container| {
                drop(slot.put(Some(Arc::clone(&container))));
                Held::new(container)
            });
            if answer.send(made).is_err() {
                drop(slot.put(None));
            }
            drop::<OwnedSemaphorePermit>(turn);
        });
        made.await.unwrap_or_else(|_| Err(closing()))
    }

    /// Takes the container that the session has, if it serves.
    async fn reuse(&self, slot: &Slot, request: &SandboxRequest, shape: &Shape) -> Result<Option<Held>> {
        let Some(container) = slot.get() else { return Ok(None) };
        if request.epoch < container.epoch() {
            return Err(superseded());
        }
        // If somebody else owned the session meanwhile, they may still come to remove what is older than theirs.
        let ours_since = request.epoch <= container.epoch() + 1;
        let serves = ours_since && container.shape == *shape && container.is_of(&request.workspace_root);
        if !container.link.alive() || !serves {
            if container.link.alive() && container.idle_since().is_none() {
                return Err(Error::unavailable(
                    "the session's sandbox is in use, by another claim or policy",
                ));
            }
            drop(slot.put(None));
            return Ok(None);
        }
        // From here on it is not idle.
        let held = Held::new(container);
        if held.is_paused() {
            if let Err(error) = held.unpause(&self.workshop).await {
                tracing::warn!(error = error.chain(), sandbox = %held.sandbox, "giving up a paused container");
                drop(slot.put(None));
                return Ok(None);
            }
            self.feed_one(&held);
        }
        held.set_epoch(request.epoch);
        Ok(Some(held))
    }

    async fn make_for(self: &Arc<Self>, request: &SandboxRequest, shape: Shape) -> Result<Arc<Container>> {
        let holder = holder(request);
        if let Some(spare) = self.take_spare(&shape) {
            spare.set_epoch(holder.epoch);
            self.announce(Arc::clone(&spare), holder);
            return self.finished(spare);
        }
        let image = image::find(&self.workshop.engine, Some(&shape.image)).await?;
        let sandbox = SandboxId::new();
        let ticket = self.place(sandbox).await?;
        // Before, so that an older owner's commands are dead when ours begin; after, because it may make one meanwhile.
        self.remove_rivals(&holder, sandbox).await?;
        let plan = self.plan(sandbox, Some(holder), request.worker, image, shape);
        let container = Arc::new(Container::make(&self.workshop, &plan, ticket).await?);
        self.remove_rivals(&holder, sandbox).await?;
        self.finished(container)
    }

    /// Tells the engine and the book whose a spare is now. The first command does not wait for that: an older owner's
    /// commands are dead already, because its lease ended; this only tidies up after it.
    fn announce(self: &Arc<Self>, spare: Arc<Container>, holder: Holder) {
        let pool = Arc::clone(self);
        self.workshop.tasks.spawn(async move {
            // Nor does it share the engine with that.
            tokio::time::sleep(FIRST_COMMAND).await;
            let told = async {
                spare.give_to(&pool.workshop, &holder).await?;
                pool.remove_rivals(&holder, spare.sandbox).await
            };
            match told.await {
                Ok(()) => {}
                Err(error) if error.code() == Code::OwnershipLost => {
                    spare.link.close("a newer owner has the session")
                }
                Err(error) => tracing::warn!(error = error.chain(), "cannot tell whose a container is"),
            }
        });
    }

    fn finished(&self, container: Arc<Container>) -> Result<Arc<Container>> {
        if self.lock().closed {
            return Err(closing());
        }
        self.feed_one(&container);
        Ok(container)
    }

    fn plan(
        &self,
        sandbox: SandboxId,
        holder: Option<Holder>,
        worker: WorkerId,
        image: Image,
        shape: Shape,
    ) -> Plan {
        Plan {
            sandbox,
            maker: self.maker(worker),
            holder,
            image,
            shape,
            user: self.options.user,
            runtime: self.options.runtime.clone(),
            volume: self.workshop.volume.name().to_owned(),
        }
    }

    fn maker(&self, worker: WorkerId) -> Maker {
        Maker { installation: self.options.installation.clone(), instance: self.instance.clone(), worker }
    }

    /// Removes the session's other containers on this engine. Fails if one of them is of a newer owner.
    async fn remove_rivals(&self, holder: &Holder, own: SandboxId) -> Result<()> {
        for rival in self.find(&[("name", holder.session.to_string())]).await? {
            let Some(other) = rival.holder else { continue };
            if rival.sandbox == own || other.session != holder.session || other.tenant != holder.tenant {
                continue;
            }
            if other.epoch > holder.epoch {
                return Err(superseded());
            }
            tracing::info!(sandbox = %rival.sandbox, session = %other.session, epoch = other.epoch,
                "removing the container of an older owner");
            self.workshop.engine.remove_container(&rival.handle).await?;
        }
        Ok(())
    }

    /// A place for one more container, made by removing an idle one if need be.
    async fn place(&self, sandbox: SandboxId) -> Result<Ticket> {
        if let Some(ticket) = self.places.try_take(sandbox) {
            return Ok(ticket);
        }
        let full = || {
            let message = format!("all {} containers of this worker are in use", self.options.max_containers);
            Error::new(Code::Overloaded, message)
        };
        if !self.places.is_leaving() && !self.evict() {
            return Err(full());
        }
        timeout(ROOM_PATIENCE, self.places.take(sandbox)).await.ok().flatten().ok_or_else(full)
    }

    /// All containers of this installation that match.
    pub(super) async fn find(&self, filters: &[(&str, String)]) -> Result<Vec<Existing>> {
        let installation = &self.options.installation;
        let mut all = filters.to_vec();
        all.push(("label", format!("{}={installation}", labels::INSTALLATION)));
        let found = self.workshop.engine.containers(&all).await?;
        let holders = self.holders();
        let read = |found: &bollard::models::ContainerSummary| {
            let (id, none) = (found.id.as_deref()?, HashMap::new());
            let (labels, names) = (found.labels.as_ref().unwrap_or(&none), found.names.as_deref());
            let what = ExistingKind::Container;
            let mut existing = labels::existing(installation, id, what, labels, names.unwrap_or_default())?;
            existing.ours = self.is_ours(labels, existing.sandbox);
            // Of its own, a backend knows better than what they say.
            existing.holder = holders.get(&existing.sandbox).copied().or(existing.holder);
            Some(existing)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    pub(super) async fn find_volumes(&self) -> Result<Vec<Existing>> {
        let installation = &self.options.installation;
        let filters = [("label", format!("{}={installation}", labels::INSTALLATION))];
        let found = self.workshop.engine.volumes(&filters).await?;
        let read = |volume: &bollard::models::Volume| {
            let what = ExistingKind::Volume;
            let mut existing = labels::existing(installation, &volume.name, what, &volume.labels, &[])?;
            existing.ours = volume.name == self.workshop.volume.name();
            Some(existing)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    fn holders(&self) -> HashMap<SandboxId, Holder> {
        let state = self.lock();
        let held = state.slots.iter().filter_map(|(&(tenant, session), slot)| {
            let container = slot.get()?;
            Some((container.sandbox, Holder { tenant, session, epoch: container.epoch() }))
        });
        held.collect()
    }

    /// What this backend made counts as its own even if it has forgotten it: it tidies up itself.
    fn is_ours(&self, labels: &HashMap<String, String>, sandbox: SandboxId) -> bool {
        labels.get(labels::INSTANCE).is_some_and(|instance| *instance == self.instance)
            || self.places.knows(sandbox)
    }

    pub(super) fn serve(&self, worker: WorkerId) {
        self.lock().worker = worker;
    }

    pub(super) fn feed(&self, until: Instant) {
        self.lock().fed_until = Some(until);
        for container in self.containers() {
            if !container.is_paused() {
                container.link.feed(until);
            }
        }
    }

    fn feed_one(&self, container: &Container) {
        if let Some(until) = self.lock().fed_until {
            container.link.feed(until);
        }
    }

    fn containers(&self) -> Vec<Arc<Container>> {
        let state = self.lock();
        state.slots.values().filter_map(|slot| slot.get()).chain(state.spares.iter().cloned()).collect()
    }

    fn slot(&self, request: &SandboxRequest) -> Result<Arc<Slot>> {
        let mut state = self.lock();
        if state.closed {
            return Err(closing());
        }
        let slot =
            state.slots.entry((request.tenant, request.session)).or_insert_with(|| Arc::new(Slot::new()));
        Ok(Arc::clone(slot))
    }

    fn take_spare(&self, shape: &Shape) -> Option<Arc<Container>> {
        let mut state = self.lock();
        state.spares.retain(|spare| spare.link.alive());
        let found = state.spares.iter().position(|spare| spare.shape == *shape)?;
        state.spare_taken = Some(Instant::now());
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
