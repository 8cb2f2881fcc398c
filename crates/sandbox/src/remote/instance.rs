//! One instance: created, started, and removed when its last handle is dropped.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    Epoch, SandboxId,
    error::{Error, Result},
    execution::{BackendKind, ExecutionSite, Holder, SandboxState},
};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    connection::InstanceConnection,
    instance_limit::InstancePermit,
    instance_record::InstanceRecord,
    provisioner::{Image, InstancePlan, InstanceSpec, Provisioner, RunningInstance, StartError},
    workspace_copy::WorkspaceCopy,
};
use crate::{path::display_safe, registry::SandboxRegistry};

/// From the instance's start to the first message of its first process.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Watchdog time of a paused instance: longer than any stays paused.
const PAUSED_WATCHDOG_TIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Shared context for creating and removing instances.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) provisioner: Arc<dyn Provisioner>,
    pub(super) tasks: TaskTracker,
    pub(super) registry: Option<Arc<dyn SandboxRegistry>>,
    /// Whether any instance was created or attempted.
    pub(super) used: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Instance {
    pub(super) sandbox: SandboxId,
    backend: BackendKind,
    image: Image,
    pub(super) spec: InstanceSpec,
    /// Path of the workspace as commands see it.
    pub(super) workspace: String,
    /// Base environment of commands.
    pub(super) env: Vec<(String, String)>,
    pub(super) connection: InstanceConnection,
    /// Set if the workspace is copied instead of mounted.
    pub(super) copy: Option<WorkspaceCopy>,
    /// Workspace of the session that owns the instance, once assigned.
    root: OnceLock<PathBuf>,
    /// The newest session epoch under which it was used.
    epoch: AtomicI64,
    paused: AtomicBool,
    use_count: Mutex<UseCount>,
    cleanup: Option<Cleanup>,
}

/// Number of handles, and since when there is none.
#[derive(Clone, Copy, Debug)]
struct UseCount {
    holders: usize,
    idle_since: Instant,
}

impl Instance {
    /// Creates an instance and waits until it can run commands. Must run in a task: the future must not be
    /// dropped halfway.
    pub(super) async fn make(
        context: &Arc<Context>,
        plan: &InstancePlan,
        permit: InstancePermit,
    ) -> Result<Self> {
        match try_create(context, plan, permit).await {
            Err((error, Some(permit))) => {
                tracing::warn!(error = error.chain(), "cannot start an instance; creating another one");
                try_create(context, plan, permit).await.map_err(|(error, _)| error)
            }
            result => result.map_err(|(error, _)| error),
        }
    }

    pub(super) fn execution_site(&self) -> ExecutionSite {
        ExecutionSite {
            backend: self.backend,
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

    /// Whether it serves this workspace. The first call assigns the workspace.
    pub(super) fn serves_workspace(&self, root: &Path) -> bool {
        self.root.get_or_init(|| root.to_owned()) == root
    }

    /// Since when it is unused; `None` while it is in use.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = *self.lock();
        (state.holders == 0).then_some(state.idle_since)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Pauses the instance, which must be idle.
    pub(super) async fn pause(&self, context: &Context) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        // It cannot be fed while paused, and its watchdog must not fire when it continues.
        self.connection.feed_watchdog(Instant::now() + PAUSED_WATCHDOG_TIME);
        self.connection.round_trip().await?;
        context.provisioner.pause(&cleanup.handle).await?;
        self.paused.store(true, Ordering::Release);
        cleanup.record.update(|record| record.state = SandboxState::Paused).await;
        Ok(())
    }

    pub(super) async fn unpause(&self, context: &Context) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        context.provisioner.unpause(&cleanup.handle).await?;
        self.paused.store(false, Ordering::Release);
        cleanup.record.update(|record| record.state = SandboxState::Active).await;
        Ok(())
    }

    /// Assigns a spare to a session, at the engine and in its record.
    pub(super) async fn assign_to(&self, context: &Context, holder: &Holder) -> Result<()> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        context.provisioner.assign(&cleanup.handle, self.sandbox, holder).await?;
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
        self.use_count.lock()
    }
}

/// Handle that marks an instance as in use.
#[derive(Debug)]
pub(super) struct InstanceHandle(Arc<Instance>);

impl InstanceHandle {
    pub(super) fn new(instance: Arc<Instance>) -> Self {
        instance.lock().holders += 1;
        Self(instance)
    }
}

impl std::ops::Deref for InstanceHandle {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.0
    }
}

impl Drop for InstanceHandle {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holders -= 1;
        state.idle_since = Instant::now();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.connection.close("it was removed");
        drop(self.cleanup.take());
    }
}

/// Drop guard of a created instance: removes it in a task.
#[derive(Debug)]
struct Cleanup {
    /// Empty if there is nothing to remove.
    handle: String,
    context: Arc<Context>,
    runtime: Handle,
    permit: Option<InstancePermit>,
    record: Arc<InstanceRecord>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if self.handle.is_empty() {
            return;
        }
        let (handle, context) = (std::mem::take(&mut self.handle), Arc::clone(&self.context));
        // The permit is released only after the removal.
        let permit = self.permit.take().map(InstancePermit::mark_removing);
        let record = Arc::clone(&self.record);
        let remove = async move {
            match context.provisioner.remove(&handle).await {
                Ok(()) => record.forget().await,
                Err(error) => {
                    tracing::warn!(error = error.chain(), handle = %display_safe(&handle), "cannot remove an instance");
                }
            }
            drop(permit);
        };
        self.context.tasks.spawn_on(remove, &self.runtime);
    }
}

/// One attempt. Returns the permit with the error if another attempt may succeed.
async fn try_create(
    context: &Arc<Context>,
    plan: &InstancePlan,
    permit: InstancePermit,
) -> Result<Instance, (Error, Option<InstancePermit>)> {
    let permanent = |error: Error| (error, None);
    let Context { provisioner, tasks, registry, used } = context.as_ref();
    used.store(true, Ordering::Relaxed);
    let engine = provisioner.engine_id().await.map_err(permanent)?;
    let record = Arc::new(InstanceRecord::new(registry.clone(), provisioner.kind(), engine, plan));
    record.save().await.map_err(permanent)?;
    let handle = match provisioner.create(plan).await {
        Ok(handle) => handle,
        Err(error) => {
            record.forget().await;
            return Err(permanent(error));
        }
    };
    let (runtime, permit) = (Handle::current(), Some(permit));
    let mut cleanup = Cleanup { handle, context: Arc::clone(context), runtime, permit, record };
    let RunningInstance { stream, supervisor, workspace, env } =
        match provisioner.start(&cleanup.handle, plan).await {
            Ok(running) => running,
            Err(StartError::Failed(error)) => return Err(permanent(error)),
            Err(StartError::Retry(error)) => {
                // The next attempt is the same sandbox under a new handle.
                provisioner.remove(&cleanup.handle).await.map_err(permanent)?;
                cleanup.handle.clear();
                return Err((error, cleanup.permit.take()));
            }
        };
    let connection = InstanceConnection::new(stream, supervisor, provisioner.noun(), tasks);
    connection.ready(READY_TIMEOUT).await.map_err(permanent)?;
    let max_bytes = plan.spec.limits.scratch_bytes;
    let copy = plan.spec.mount.is_none().then(|| WorkspaceCopy::new(workspace.clone(), max_bytes));
    if let Some(copy) = &copy {
        copy.prepare(&connection).await.map_err(permanent)?;
    }
    let (handle, holder) = (cleanup.handle.clone(), plan.holder);
    cleanup
        .record
        .update(|record| {
            record.handle = Some(handle);
            record.state = if holder.is_some() { SandboxState::Active } else { SandboxState::Spare };
        })
        .await;
    Ok(Instance {
        sandbox: plan.sandbox,
        backend: provisioner.kind(),
        image: plan.image.clone(),
        spec: plan.spec.clone(),
        workspace,
        env,
        connection,
        copy,
        root: OnceLock::new(),
        epoch: AtomicI64::new(holder.map_or(0, |holder| holder.epoch)),
        paused: AtomicBool::new(false),
        use_count: Mutex::new(UseCount { holders: 0, idle_since: Instant::now() }),
        cleanup: Some(cleanup),
    })
}
