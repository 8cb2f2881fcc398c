//! One container: created, attached, and removed when its last handle is dropped.

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
    execution::{BackendKind, ExecutionSite, Holder, SandboxState},
};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::connection::ContainerConnection;
use super::instance_limit::ContainerPermit;
use super::instance_record::ContainerRecord;
use super::labels;
use super::workspace_copy::WorkspaceCopy;
use crate::docker::create::{ContainerPlan, ContainerSpec, SUPERVISOR, create_body};
use crate::docker::engine::{Engine, Failure};
use crate::docker::image::Image;
use crate::docker::supervisor_volume::SupervisorVolume;
use crate::{path::display_safe, registry::SandboxRegistry};

/// From the container's start to the first message of its PID 1.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Watchdog time of a paused container: longer than any stays paused.
const PAUSED_WATCHDOG_TIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Shared context for creating and removing containers.
#[derive(Debug)]
pub(crate) struct DockerContext {
    pub(crate) engine: Engine,
    pub(crate) volume: SupervisorVolume,
    pub(crate) tasks: TaskTracker,
    pub(crate) registry: Option<Arc<dyn SandboxRegistry>>,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) sandbox: SandboxId,
    pub(crate) image: Image,
    pub(crate) spec: ContainerSpec,
    pub(crate) connection: ContainerConnection,
    /// Set if the workspace is copied instead of mounted.
    pub(crate) copy: Option<WorkspaceCopy>,
    /// Workspace of the session that owns the container, once assigned.
    root: OnceLock<PathBuf>,
    /// The newest session epoch under which it was used.
    epoch: AtomicI64,
    paused: AtomicBool,
    use_count: Mutex<UseCount>,
    cleanup: Option<ContainerCleanup>,
}

/// Number of handles, and since when there is none.
#[derive(Clone, Copy, Debug)]
struct UseCount {
    holders: usize,
    idle_since: Instant,
}

impl Container {
    /// Creates a container and waits until it can run commands. Must run in a task: the future must not be
    /// dropped halfway.
    pub(crate) async fn make(
        context: &Arc<DockerContext>,
        plan: &ContainerPlan,
        permit: ContainerPermit,
    ) -> Result<Self> {
        match try_create(context, plan, permit).await {
            // The supervisor volume was removed, for example by `docker volume prune`.
            Err((error, Some(permit))) if error.code() == Code::Internal => {
                tracing::warn!(error = error.chain(), "supervisor volume is missing; creating it again");
                context.volume.forget();
                try_create(context, plan, permit).await.map_err(|(error, _)| error)
            }
            result => result.map_err(|(error, _)| error),
        }
    }

    pub(crate) fn execution_site(&self) -> ExecutionSite {
        ExecutionSite {
            backend: BackendKind::Docker,
            sandbox: self.sandbox,
            image: self.image.name.clone(),
            digest: self.image.digest.clone(),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Whether it serves this workspace. The first call assigns the workspace.
    pub(crate) fn serves_workspace(&self, root: &Path) -> bool {
        self.root.get_or_init(|| root.to_owned()) == root
    }

    /// Since when it is unused; `None` while it is in use.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = *self.lock();
        (state.holders == 0).then_some(state.idle_since)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Pauses the container, which must be idle.
    pub(crate) async fn pause(&self, context: &DockerContext) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        // It cannot be fed while paused, and its watchdog must not fire when it continues.
        self.connection.feed_watchdog(Instant::now() + PAUSED_WATCHDOG_TIME);
        self.connection.round_trip().await?;
        let id = cleanup.id.as_str();
        let paused = context.engine.call(|docker| async move { docker.pause_container(id).await }).await;
        paused.map_err(|failure| failure.into_error("pause a container"))?;
        self.paused.store(true, Ordering::Release);
        cleanup.record.update(|record| record.state = SandboxState::Paused).await;
        Ok(())
    }

    pub(crate) async fn unpause(&self, context: &DockerContext) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        let id = cleanup.id.as_str();
        let unpaused = context.engine.call(|docker| async move { docker.unpause_container(id).await }).await;
        unpaused.map_err(|failure| failure.into_error("unpause a container"))?;
        self.paused.store(false, Ordering::Release);
        cleanup.record.update(|record| record.state = SandboxState::Active).await;
        Ok(())
    }

    /// Assigns a spare to a session: renames the container and updates its record.
    pub(crate) async fn assign_to(&self, context: &DockerContext, holder: &Holder) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        let (id, name) = (cleanup.id.as_str(), labels::name(self.sandbox, Some(holder)));
        let options = RenameContainerOptions { name };
        let renamed = context.engine.call(|docker| async move { docker.rename_container(id, options).await });
        renamed.await.map_err(|failure| failure.into_error("rename a container"))?;
        cleanup
            .record
            .update(|record| {
                record.holder = Some(*holder);
                record.state = SandboxState::Active;
            })
            .await;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, UseCount> {
        self.use_count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle that marks a container as in use.
#[derive(Debug)]
pub(crate) struct ContainerHandle(Arc<Container>);

impl ContainerHandle {
    pub(crate) fn new(container: Arc<Container>) -> Self {
        container.lock().holders += 1;
        Self(container)
    }
}

impl std::ops::Deref for ContainerHandle {
    type Target = Container;

    fn deref(&self) -> &Container {
        &self.0
    }
}

impl Drop for ContainerHandle {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holders -= 1;
        state.idle_since = Instant::now();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.connection.close("it was removed");
        drop(self.cleanup.take());
    }
}

/// Drop guard of a created container: removes it in a task.
#[derive(Debug)]
struct ContainerCleanup {
    /// Empty if there is nothing to remove.
    id: String,
    context: Arc<DockerContext>,
    runtime: Handle,
    permit: Option<ContainerPermit>,
    record: Arc<ContainerRecord>,
}

impl Drop for ContainerCleanup {
    fn drop(&mut self) {
        if self.id.is_empty() {
            return;
        }
        let (id, context) = (std::mem::take(&mut self.id), Arc::clone(&self.context));
        // The permit is released only after the removal.
        let permit = self.permit.take().map(ContainerPermit::mark_removing);
        let record = Arc::clone(&self.record);
        let remove = async move {
            match context.engine.remove_container(&id).await {
                Ok(()) => record.forget().await,
                Err(error) => {
                    tracing::warn!(error = error.chain(), container = %display_safe(&id), "cannot remove a container");
                }
            }
            drop(permit);
        };
        self.context.tasks.spawn_on(remove, &self.runtime);
    }
}

/// One attempt. Returns the permit with the error if another attempt may succeed.
async fn try_create(
    context: &Arc<DockerContext>,
    plan: &ContainerPlan,
    permit: ContainerPermit,
) -> Result<Container, (Error, Option<ContainerPermit>)> {
    let permanent = |error: Error| (error, None);
    let DockerContext { engine, volume, tasks, registry } = context.as_ref();
    volume.ensure(engine, &plan.creator, &plan.image).await.map_err(permanent)?;
    let engine_id = engine.client().await.map_err(permanent)?.id;
    let record = Arc::new(ContainerRecord::new(registry.clone(), plan, engine_id));
    record.save().await.map_err(permanent)?;
    let id = match create(engine, plan).await {
        Ok(id) => id,
        Err(failure) => {
            record.forget().await;
            return Err(permanent(creation_error(failure, plan)));
        }
    };
    let (runtime, permit) = (Handle::current(), Some(permit));
    let mut cleanup = ContainerCleanup { id, context: Arc::clone(context), runtime, permit, record };
    let id = cleanup.id.as_str();
    // Attached before the start, so that no output is missed and the container ends if this process dies.
    let options = AttachContainerOptions { stream: true, stdin: true, stdout: true, ..Default::default() };
    let attached =
        engine.call(|docker| async move { docker.attach_container(id, Some(options)).await }).await;
    let connection = ContainerConnection::new(
        attached.map_err(|failure| permanent(failure.into_error("attach to a container")))?,
        tasks,
    );
    let started = engine
        .call(|docker| async move { docker.start_container(id, None::<StartContainerOptions>).await })
        .await;
    if let Err(failure) = started {
        let lost = failure.message_contains(SUPERVISOR) && failure.message_contains("no such file");
        let error = creation_error(failure, plan);
        if !lost {
            return Err(permanent(error));
        }
        // The next attempt needs the container's name.
        engine.remove_container(id).await.map_err(permanent)?;
        cleanup.id.clear();
        let error = Error::internal("the supervisor program is missing in its volume").with_source(error);
        return Err((error, cleanup.permit.take()));
    }
    connection.ready(READY_TIMEOUT).await.map_err(permanent)?;
    let copy = plan.spec.mount.is_none().then(|| WorkspaceCopy::new(plan.spec.limits.scratch_bytes));
    if let Some(copy) = &copy {
        copy.prepare(&connection).await.map_err(permanent)?;
    }
    let (handle, holder) = (cleanup.id.clone(), plan.holder);
    cleanup
        .record
        .update(|record| {
            record.handle = Some(handle);
            record.state = if holder.is_some() { SandboxState::Active } else { SandboxState::Spare };
        })
        .await;
    Ok(Container {
        sandbox: plan.sandbox,
        image: plan.image.clone(),
        spec: plan.spec.clone(),
        connection,
        copy,
        root: OnceLock::new(),
        epoch: AtomicI64::new(holder.map_or(0, |holder| holder.epoch)),
        paused: AtomicBool::new(false),
        use_count: Mutex::new(UseCount { holders: 0, idle_since: Instant::now() }),
        cleanup: Some(cleanup),
    })
}

async fn create(engine: &Engine, plan: &ContainerPlan) -> Result<String, Failure> {
    let (body, name) = (create_body(plan), labels::name(plan.sandbox, plan.holder.as_ref()));
    let options = CreateContainerOptions { name: Some(name), platform: String::new() };
    let created =
        engine.call(|docker| async move { docker.create_container(Some(options), body).await }).await;
    Ok(created?.id)
}

/// Maps the engine's rejection to an error for the caller.
fn creation_error(failure: Failure, plan: &ContainerPlan) -> Error {
    let network = plan.spec.network.as_str();
    if failure.message_contains("network") && failure.message_contains("not found") {
        let message = format!("the engine has no network {}", display_safe(network));
        return Error::new(Code::NotConfigured, message).at("network");
    }
    if failure.message_contains("unknown runtime") || failure.message_contains("unknown or invalid runtime") {
        let runtime = plan.runtime.as_deref().unwrap_or_default();
        return Error::new(
            Code::NotConfigured,
            format!("the engine has no runtime {}", display_safe(runtime)),
        );
    }
    if failure.message_contains("bind source path does not exist") {
        let advice = "it must run on this machine to mount workspaces; elsewhere they can be copied";
        return Error::unavailable(format!("the Docker engine does not see the workspace: {advice}"));
    }
    failure.into_error("start a container")
}
