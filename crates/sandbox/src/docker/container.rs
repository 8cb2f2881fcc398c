//! One container: made, attached, and gone for good when nobody holds it.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, RenameContainerOptions, StartContainerOptions,
};
use remuda_domain::{
    Epoch, SandboxId,
    error::{Code, Error, Result},
    execution::{BackendKind, Holder, Place, SandboxState},
};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    copy::Copy,
    create::{Plan, SUPERVISOR, Shape, create_body},
    engine::{Engine, Failure},
    image::Image,
    labels,
    link::Link,
    places::Ticket,
    record::Record,
    supervisor_volume::SupervisorVolume,
};
use crate::{book::SandboxBook, path::shown};

/// From the start of the container to the first word of its first process.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// For how long a paused container does without promises: longer than any stays.
const UNFED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What making containers takes.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) engine: Engine,
    pub(super) volume: SupervisorVolume,
    pub(super) tasks: TaskTracker,
    pub(super) book: Option<Arc<dyn SandboxBook>>,
}

#[derive(Debug)]
pub(super) struct Container {
    pub(super) sandbox: SandboxId,
    pub(super) image: Image,
    pub(super) shape: Shape,
    pub(super) link: Link,
    /// If the workspace is not mounted.
    pub(super) copy: Option<Copy>,
    /// Whose files it has, once it is somebody's.
    root: OnceLock<PathBuf>,
    /// The newest ownership it was used under.
    epoch: AtomicI64,
    paused: AtomicBool,
    use_: Mutex<Use>,
    remains: Option<Remains>,
}

/// Who uses it.
#[derive(Clone, Copy, Debug)]
struct Use {
    holders: usize,
    idle_since: Instant,
}

impl Container {
    /// Makes a container and waits until it can run commands. Not to be dropped halfway: run it in a task.
    pub(super) async fn make(workshop: &Arc<Workshop>, plan: &Plan, ticket: Ticket) -> Result<Self> {
        match attempt(workshop, plan, ticket).await {
            // Somebody has removed the volume, as `docker volume prune` does.
            Err((error, Some(ticket))) if error.code() == Code::Internal => {
                tracing::warn!(error = error.chain(), "making the supervisor's volume anew");
                workshop.volume.forget();
                attempt(workshop, plan, ticket).await.map_err(|(error, _)| error)
            }
            result => result.map_err(|(error, _)| error),
        }
    }

    pub(super) fn place(&self) -> Place {
        Place {
            backend: BackendKind::Docker,
            sandbox: self.sandbox,
            image: self.image.name.clone(),
            digest: self.image.digest.clone(),
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    pub(super) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Whether it is for these files. The first who asks decides.
    pub(super) fn is_of(&self, root: &Path) -> bool {
        self.root.get_or_init(|| root.to_owned()) == root
    }

    /// Since when nobody has used it; `None` while somebody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = *self.lock();
        (state.holders == 0).then_some(state.idle_since)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Stops what is in it. Nobody may be using it.
    pub(super) async fn pause(&self, workshop: &Workshop) -> Result<()> {
        let Some(remains) = &self.remains else { return Ok(()) };
        // It cannot hear promises, and must not find one broken when it goes on.
        self.link.feed(Instant::now() + UNFED);
        self.link.answer().await?;
        let id = remains.id.as_str();
        let paused = workshop.engine.ask(|docker| async move { docker.pause_container(id).await }).await;
        paused.map_err(|failure| failure.to("pause a container"))?;
        self.paused.store(true, Ordering::Release);
        remains.record.update(|record| record.state = SandboxState::Paused).await;
        Ok(())
    }

    pub(super) async fn unpause(&self, workshop: &Workshop) -> Result<()> {
        let Some(remains) = &self.remains else { return Ok(()) };
        let id = remains.id.as_str();
        let unpaused = workshop.engine.ask(|docker| async move { docker.unpause_container(id).await }).await;
        unpaused.map_err(|failure| failure.to("go on with a paused container"))?;
        self.paused.store(false, Ordering::Release);
        remains.record.update(|record| record.state = SandboxState::Active).await;
        Ok(())
    }

    /// Tells by its name whose it is now.
    pub(super) async fn give_to(&self, workshop: &Workshop, holder: &Holder) -> Result<()> {
        let Some(remains) = &self.remains else { return Ok(()) };
        let (id, name) = (remains.id.as_str(), labels::name(self.sandbox, Some(holder)));
        let options = RenameContainerOptions { name };
        let renamed = workshop.engine.ask(|docker| async move { docker.rename_container(id, options).await });
        renamed.await.map_err(|failure| failure.to("name a container"))?;
        remains
            .record
            .update(|record| {
                record.holder = Some(*holder);
                record.state = SandboxState::Active;
            })
            .await;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a container in use.
#[derive(Debug)]
pub(super) struct Held(Arc<Container>);

impl Held {
    pub(super) fn new(container: Arc<Container>) -> Self {
        container.lock().holders += 1;
        Self(container)
    }
}

impl std::ops::Deref for Held {
    type Target = Container;

    fn deref(&self) -> &Container {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holders -= 1;
        state.idle_since = Instant::now();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.link.close("it was removed");
        drop(self.remains.take());
    }
}

/// A container of which something may be left. Dropping it removes that, in a task.
#[derive(Debug)]
struct Remains {
    /// Empty if nothing is left.
    id: String,
    workshop: Arc<Workshop>,
    runtime: Handle,
    ticket: Option<Ticket>,
    record: Arc<Record>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        if self.id.is_empty() {
            return;
        }
        let (id, workshop) = (std::mem::take(&mut self.id), Arc::clone(&self.workshop));
        // Its place is free only when it is gone.
        let ticket = self.ticket.take().map(Ticket::leave);
        let record = Arc::clone(&self.record);
        let remove = async move {
            match workshop.engine.remove_container(&id).await {
                Ok(()) => record.forget().await,
                Err(error) => {
                    tracing::warn!(error = error.chain(), container = %shown(&id), "cannot remove a container");
                }
            }
            drop(ticket);
        };
        self.workshop.tasks.spawn_on(remove, &self.runtime);
    }
}

/// Gives the ticket back if the failure is one that another attempt may mend.
async fn attempt(
    workshop: &Arc<Workshop>,
    plan: &Plan,
    ticket: Ticket,
) -> Result<Container, (Error, Option<Ticket>)> {
    let for_good = |error: Error| (error, None);
    let Workshop { engine, volume, tasks, book } = workshop.as_ref();
    volume.ready(engine, &plan.maker, &plan.image).await.map_err(for_good)?;
    let engine_id = engine.client().await.map_err(for_good)?.id;
    let record = Arc::new(Record::new(book.clone(), plan, engine_id));
    record.save().await.map_err(for_good)?;
    let id = match create(engine, plan).await {
        Ok(id) => id,
        Err(failure) => {
            record.forget().await;
            return Err(for_good(cannot_make(failure, plan)));
        }
    };
    let (runtime, ticket) = (Handle::current(), Some(ticket));
    let mut remains = Remains { id, workshop: Arc::clone(workshop), runtime, ticket, record };
    let id = remains.id.as_str();
    // Before the start, so that nothing is missed and no end of ours goes unnoticed.
    let options = AttachContainerOptions { stream: true, stdin: true, stdout: true, ..Default::default() };
    let attached = engine.ask(|docker| async move { docker.attach_container(id, Some(options)).await }).await;
    let link = Link::new(attached.map_err(|failure| for_good(failure.to("attach to a container")))?, tasks);
    let started = engine
        .ask(|docker| async move { docker.start_container(id, None::<StartContainerOptions>).await })
        .await;
    if let Err(failure) = started {
        let lost = failure.says(SUPERVISOR) && failure.says("no such file");
        let error = cannot_make(failure, plan);
        if !lost {
            return Err(for_good(error));
        }
        // Its name is needed for the next attempt.
        engine.remove_container(id).await.map_err(for_good)?;
        remains.id.clear();
        let error = Error::internal("the supervisor is not in its volume").with_source(error);
        return Err((error, remains.ticket.take()));
    }
    link.ready(READY_TIMEOUT).await.map_err(for_good)?;
    let copy = plan.shape.mount.is_none().then(|| Copy::new(plan.shape.limits.scratch_bytes));
    if let Some(copy) = &copy {
        copy.prepare(&link).await.map_err(for_good)?;
    }
    let (handle, holder) = (remains.id.clone(), plan.holder);
    remains
        .record
        .update(|record| {
            record.handle = Some(handle);
            record.state = if holder.is_some() { SandboxState::Active } else { SandboxState::Spare };
        })
        .await;
    Ok(Container {
        sandbox: plan.sandbox,
        image: plan.image.clone(),
        shape: plan.shape.clone(),
        link,
        copy,
        root: OnceLock::new(),
        epoch: AtomicI64::new(holder.map_or(0, |holder| holder.epoch)),
        paused: AtomicBool::new(false),
        use_: Mutex::new(Use { holders: 0, idle_since: Instant::now() }),
        remains: Some(remains),
    })
}

async fn create(engine: &Engine, plan: &Plan) -> Result<String, Failure> {
    let (body, name) = (create_body(plan), labels::name(plan.sandbox, plan.holder.as_ref()));
    let options = CreateContainerOptions { name: Some(name), platform: String::new() };
    let created =
        engine.ask(|docker| async move { docker.create_container(Some(options), body).await }).await;
    Ok(created?.id)
}

/// What the engine's refusal means for whoever asked for the container.
fn cannot_make(failure: Failure, plan: &Plan) -> Error {
    let network = plan.shape.network.as_str();
    if failure.says("network") && failure.says("not found") {
        let message = format!("the engine has no network {}", shown(network));
        return Error::new(Code::NotConfigured, message).at("network");
    }
    if failure.says("unknown runtime") || failure.says("unknown or invalid runtime") {
        let runtime = plan.runtime.as_deref().unwrap_or_default();
        return Error::new(Code::NotConfigured, format!("the engine has no runtime {}", shown(runtime)));
    }
    if failure.says("bind source path does not exist") {
        let advice = "it must run on this machine to mount workspaces; elsewhere they can be copied";
        return Error::unavailable(format!("the Docker engine does not see the workspace: {advice}"));
    }
    failure.to("start a container")
}
