//! Executors of a trivial command. Each returns the microseconds it took.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bollard::{
    Docker,
    exec::{CreateExecOptions, StartExecResults},
    models::ContainerCreateBody,
    query_parameters::RemoveContainerOptions,
};
use futures::StreamExt as _;
use remuda_domain::{
    SessionId, TenantId, WorkerId,
    execution::{BackendKind, ExecutionPolicy, NO_NETWORK, ResourceLimits, WorkspaceAccess},
};
use remuda_sandbox::{
    Backend, Command, EngineResourceKind, ExecStatus, LocalBackend, LocalOptions, NoOutput, Sandbox,
    SandboxRequest,
    docker::{DockerBackend, DockerOptions, WarmTarget},
};
use remuda_testkit::wait_for;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const SCRIPT: &str = "true";
const TIMEOUT: Duration = Duration::from_secs(60);

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The minimum on this machine: a shell as a child process, its output read to the end.
pub(super) struct BareProcess;

impl BareProcess {
    pub(super) async fn run_once() -> Result<u64> {
        let begun = Instant::now();
        let output = tokio::process::Command::new(LocalOptions::default().shell)
            .args(["-c", SCRIPT])
            .stdin(Stdio::null())
            .output()
            .await?;
        ensure!(output.status.success(), "the bare command failed");
        Ok(micros(begun))
    }
}

async fn exec(sandbox: &dyn Sandbox) -> Result<u64> {
    let begun = Instant::now();
    let command = Command::shell(SCRIPT, TIMEOUT);
    let result = sandbox.exec(command, &NoOutput, &CancellationToken::new()).await?;
    ensure!(result.status == ExecStatus::Exited(0), "the command ended with {:?}", result.status);
    Ok(micros(begun))
}

fn request(directory: &Path, policy: ExecutionPolicy) -> SandboxRequest {
    SandboxRequest {
        tenant: TenantId::new(),
        session: SessionId::new(),
        epoch: 1,
        worker: WorkerId::new(),
        workspace_root: directory.join("workspace"),
        policy,
    }
}

pub(super) struct LocalExecutor(Arc<dyn Sandbox>);

impl LocalExecutor {
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        let backend = LocalBackend::new(LocalOptions::default());
        Ok(Self(backend.acquire(&request(directory, ExecutionPolicy::default())).await?))
    }

    pub(super) async fn run_once(&self) -> Result<u64> {
        exec(self.0.as_ref()).await
    }
}

/// The engine's own exec in a separate container: create, start, read to the end, inspect the exit code.
pub(super) struct EngineExec {
    docker: Docker,
    container: String,
}

impl EngineExec {
    pub(super) async fn start(host: &str, image: &str) -> Result<Self> {
        let docker = Docker::connect_with_host(host)?.negotiate_version().await?;
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            cmd: Some(vec!["sleep".to_owned(), "86400".to_owned()]),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        let container = docker.create_container(None, body).await?.id;
        docker.start_container(&container, None).await?;
        Ok(Self { docker, container })
    }

    pub(super) async fn run_once(&self) -> Result<u64> {
        let begun = Instant::now();
        let options = CreateExecOptions {
            cmd: Some(vec!["sh", "-c", SCRIPT]),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..CreateExecOptions::default()
        };
        let id = self.docker.create_exec(&self.container, options).await?.id;
        let StartExecResults::Attached { mut output, .. } = self.docker.start_exec(&id, None).await? else {
            anyhow::bail!("the engine did not attach");
        };
        while let Some(chunk) = output.next().await {
            chunk?;
        }
        let exit = self.docker.inspect_exec(&id).await?.exit_code;
        ensure!(exit == Some(0), "the exec ended with {exit:?}");
        Ok(micros(begun))
    }

    pub(super) async fn stop(self) -> Result<()> {
        let options = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
        self.docker
            .remove_container(&self.container, Some(options))
            .await
            .context("cannot remove a container")
    }
}

/// The Docker backend with one spare container.
pub(super) struct DockerExecutor {
    backend: DockerBackend,
    image: String,
    directory: PathBuf,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl DockerExecutor {
    pub(super) async fn start(host: &str, image: &str, directory: &Path) -> Result<Self> {
        let worker = WorkerId::new();
        let installation = format!("loadtest-{worker}");
        let warm = WarmTarget {
            image: image.to_owned(),
            count: 1,
            network: NO_NETWORK.to_owned(),
            limits: ResourceLimits::default(),
        };
        let options = DockerOptions { warm: vec![warm], ..DockerOptions::new(host, installation, worker) };
        let (backend, stop, tasks) =
            (DockerBackend::new(options), CancellationToken::new(), TaskTracker::new());
        backend.set_worker(worker);
        let (keeper, until) = (backend.clone(), stop.clone());
        tasks.spawn(async move { keeper.maintain(until).await });
        // The user of the container must be able to reach the workspace.
        std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(Self { backend, image: image.to_owned(), directory: directory.to_owned(), stop, tasks })
    }

    fn policy(&self, workspace: WorkspaceAccess) -> ExecutionPolicy {
        let image = Some(self.image.clone());
        ExecutionPolicy { backend: BackendKind::Docker, image, workspace, ..ExecutionPolicy::default() }
    }

    /// A session whose container is warm.
    pub(super) async fn session(&self) -> Result<Arc<dyn Sandbox>> {
        let request = request(&self.directory, self.policy(WorkspaceAccess::Mount));
        let sandbox = self.backend.acquire(&request).await?;
        exec(sandbox.as_ref()).await?;
        Ok(sandbox)
    }

    pub(super) async fn run_once(&self, sandbox: &Arc<dyn Sandbox>) -> Result<u64> {
        exec(sandbox.as_ref()).await
    }

    /// The time of the first call of a new session, including its sandbox, and of a later call after an equal pause.
    pub(super) async fn first_and_later(&self) -> Result<[u64; 2]> {
        let empty = tempfile::tempdir_in(&self.directory)?;
        std::fs::set_permissions(empty.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let request = request(empty.path(), self.policy(WorkspaceAccess::Copy));
        self.wait_for_spare().await?;
        let begun = Instant::now();
        let sandbox = self.backend.acquire(&request).await?;
        exec(sandbox.as_ref()).await?;
        let first = micros(begun);
        self.wait_for_spare().await?;
        Ok([first, exec(sandbox.as_ref()).await?])
    }

    pub(super) async fn wait_for_spare(&self) -> Result<()> {
        let spare = || async {
            let found = self.backend.list().await.unwrap_or_default();
            let spares =
                found.iter().filter(|it| it.kind == EngineResourceKind::Container && it.holder.is_none());
            (spares.count() == 1).then_some(())
        };
        wait_for("a spare container", TIMEOUT, spare).await;
        Ok(())
    }

    pub(super) async fn containers(&self) -> Result<usize> {
        let found = self.backend.list().await?;
        Ok(found.iter().filter(|it| it.kind == EngineResourceKind::Container).count())
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
