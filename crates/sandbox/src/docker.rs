//! The Docker backend: one container per session.
//!
//! A container has no privileges, no network unless the policy names one, and a read-only root. Its PID 1 is
//! our own supervisor. One attached stream connects it to this process and carries all commands of the
//! session: a command is killed *inside* the container, and when a worker dies, its containers end because
//! their stdin closes. File tools work on the host's side of the workspace, as with every backend; the
//! workspace is mounted, or copied in and out.

pub(crate) mod create;
mod describe;
pub(crate) mod engine;
pub(crate) mod image;
pub(crate) mod options;
pub(crate) mod supervisor_volume;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    WorkerId,
    error::{Code, Error, Result},
    execution::BackendKind,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::{
    create::ContainerUser,
    options::{DEFAULT_DOCKER_HOST, DockerOptions, WarmTarget},
};
use crate::{
    path::display_safe,
    remote::{
        pool::Pool,
        sandbox::{self, DockerSandbox},
    },
    traits::{Backend, EngineResource, EngineResourceKind, Feature, Sandbox, SandboxRequest},
};

#[derive(Clone, Debug)]
pub struct DockerBackend(Arc<Pool>);

impl DockerBackend {
    /// Does not connect to the engine yet: an engine that is down fails only the calls that need it.
    #[must_use]
    pub fn new(options: DockerOptions) -> Self {
        Self(Arc::new(Pool::new(options)))
    }

    async fn check_network(&self, network: &str) -> Result<()> {
        let engine = &self.0.context.engine;
        let found = engine.call(|docker| async move { docker.inspect_network(network, None).await }).await;
        match found {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => {
                let message = format!("the engine has no network {}", display_safe(network));
                Err(Error::new(Code::NotConfigured, message).at("network"))
            }
            Err(failure) => Err(failure.into_error("inspect the network")),
        }
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Docker
    }

    async fn check(&self, request: &SandboxRequest) -> Result<()> {
        let spec = Pool::spec(request)?;
        image::find(&self.0.context.engine, Some(&spec.image)).await?;
        if create::has_network(&spec) {
            self.check_network(&spec.network).await?;
        }
        Ok(())
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let options = &self.0.options;
        let files = sandbox::open_workspace(&request.workspace_root, options).await?;
        let container = self.0.acquire(request).await?;
        Ok(Arc::new(DockerSandbox::new(files, container, options)))
    }

    fn feed_watchdog(&self, time: Duration) {
        self.0.feed_watchdog(Instant::now() + time);
    }

    fn set_worker(&self, worker: WorkerId) {
        self.0.set_worker(worker);
    }

    async fn engine_id(&self) -> Result<String> {
        Ok(self.0.context.engine.client().await?.id)
    }

    async fn maintain(&self, stop: CancellationToken) {
        self.0.maintain(stop).await;
    }

    async fn list(&self) -> Result<Vec<EngineResource>> {
        let mut found = self.0.find(&[]).await?;
        found.extend(self.0.find_volumes().await?);
        Ok(found)
    }

    async fn remove(&self, existing: &EngineResource) -> Result<()> {
        let engine = &self.0.context.engine;
        match existing.kind {
            EngineResourceKind::Container => engine.remove_container(&existing.handle).await,
            EngineResourceKind::Volume => engine.remove_volume(&existing.handle).await,
        }
    }

    async fn describe(&self) -> Vec<Feature> {
        let engine = &self.0.context.engine;
        let known = async { Ok((engine.client().await?, engine.info().await?)) };
        match known.await {
            Ok((client, info)) => describe::features(&client, &info, &self.0.options),
            Err(error) => describe::no_engine(Error::chain(&error)),
        }
    }
}
