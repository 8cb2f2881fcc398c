//! Test fixture: a Docker backend per test, on the engine that the environment names. It removes everything
//! afterwards.

use std::{
    collections::HashMap,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{Docker, models::ContainerSummary, query_parameters::ListContainersOptions};
use remuda_domain::{
    SessionId, TenantId, WorkerId,
    execution::{BackendKind, ExecutionPolicy},
};
use remuda_sandbox::{
    Backend, Command, DockerBackend, DockerOptions, ExecResult, NoOutput, Sandbox, SandboxRequest,
};
use tempfile::TempDir;
use tokio::{runtime::Handle, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::image::{TestImage, busybox, shared_busybox, uuid_like};
use crate::fixture::LONG;

pub(crate) struct DockerFixture {
    pub(crate) backend: DockerBackend,
    pub(crate) docker: Docker,
    pub(crate) image: Arc<TestImage>,
    pub(crate) outside: TempDir,
    pub(crate) installation: String,
    stop: CancellationToken,
    maintain: JoinSet<()>,
    /// Removed after the containers.
    images: Vec<TestImage>,
}

/// The address of the engine for tests.
pub(crate) fn host() -> String {
    ["REMUDA_TEST_DOCKER_HOST", "DOCKER_HOST"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|host| !host.is_empty()))
        .expect("DOCKER_HOST is not set; run `cargo xtask test`, or `cargo xtask services` and export what it prints")
}

pub(crate) async fn client(host: &str) -> Docker {
    Docker::connect_with_host(host).unwrap().negotiate_version().await.unwrap()
}

/// Blocks on cleanup in `Drop`. Tests of this module need a multi-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(work))
}

impl DockerFixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(adjust: impl FnOnce(&mut DockerOptions)) -> Self {
        let host = host();
        let docker = client(&host).await;
        let image = shared_busybox(&docker).await;
        Self::of(&host, docker, image, uuid_like(), adjust)
    }

    /// On a private engine of the test.
    pub(crate) async fn at(host: &str) -> Self {
        let docker = client(host).await;
        let image = Arc::new(busybox(&docker).await);
        Self::of(host, docker, image, uuid_like(), |_| {})
    }

    /// Another worker of the same installation.
    pub(crate) fn second(&self) -> Self {
        let installation = self.installation.clone();
        Self::of(&host(), self.docker.clone(), Arc::clone(&self.image), installation, |_| {})
    }

    fn of(
        host: &str,
        docker: Docker,
        image: Arc<TestImage>,
        installation: String,
        adjust: impl FnOnce(&mut DockerOptions),
    ) -> Self {
        let mut options = DockerOptions::new(host, &installation, WorkerId::new());
        adjust(&mut options);
        let (backend, stop) = (DockerBackend::new(options), CancellationToken::new());
        let mut maintain = JoinSet::new();
        let (keeper, until) = (backend.clone(), stop.clone());
        maintain.spawn(async move { keeper.maintain(until).await });
        let outside = readable_directory();
        Self { backend, docker, image, outside, installation, stop, maintain, images: Vec::new() }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.outside.path().join("workspace")
    }

    /// A request for a new session.
    pub(crate) fn request(&self) -> SandboxRequest {
        SandboxRequest {
            tenant: TenantId::new(),
            session: SessionId::new(),
            epoch: 1,
            worker: WorkerId::new(),
            workspace_root: self.workspace(),
            policy: ExecutionPolicy {
                backend: BackendKind::Docker,
                image: Some(self.image.name.clone()),
                ..ExecutionPolicy::default()
            },
        }
    }

    /// A request with an image built from this directory.
    pub(crate) async fn request_for(&mut self, root: &Path, changes: &[&str]) -> SandboxRequest {
        let image = TestImage::import(&self.docker, root, changes).await;
        let mut request = self.request();
        request.policy.image = Some(image.name.clone());
        self.images.push(image);
        request
    }

    pub(crate) async fn sandbox(&self) -> Arc<dyn Sandbox> {
        self.backend.acquire(&self.request()).await.unwrap()
    }

    /// All containers of this installation, in any state.
    pub(crate) async fn containers(&self) -> Vec<ContainerSummary> {
        containers(&self.docker, &self.installation).await
    }

    pub(crate) async fn only_container(&self) -> String {
        let containers = self.containers().await;
        assert_eq!(containers.len(), 1, "{containers:?}");
        containers[0].id.clone().unwrap()
    }

    pub(crate) async fn close(&mut self) {
        self.stop.cancel();
        while self.maintain.join_next().await.is_some() {}
    }
}

/// A directory that the containers' user can read.
pub(crate) fn readable_directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    directory
}

pub(crate) async fn containers(docker: &Docker, installation: &str) -> Vec<ContainerSummary> {
    let label = format!("dev.remuda.installation={installation}");
    let filters = Some(HashMap::from([("label".to_owned(), vec![label])]));
    let options = ListContainersOptions { all: true, filters, ..Default::default() };
    docker.list_containers(Some(options)).await.unwrap()
}

impl Drop for DockerFixture {
    fn drop(&mut self) {
        block_on(self.close());
        if std::thread::panicking() {
            return;
        }
        let left =
            block_on(self.backend.list()).map(|left| left.into_iter().filter(|left| left.ours).count());
        // An engine that the test has stopped cannot be asked.
        assert!(!matches!(left, Ok(1..)), "{left:?} resources are left on the engine");
    }
}

pub(crate) async fn shell(sandbox: &dyn Sandbox, script: &str) -> ExecResult {
    run(sandbox, Command::shell(script, LONG)).await.unwrap()
}

pub(crate) async fn run(sandbox: &dyn Sandbox, command: Command) -> remuda_domain::Result<ExecResult> {
    sandbox.exec(command, &NoOutput, &CancellationToken::new()).await
}

/// Waits for a condition on the engine.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, poll).await.is_ok(), "condition not met in time: {what}");
}
