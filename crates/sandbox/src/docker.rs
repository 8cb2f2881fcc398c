//! The Docker backend: every session has a container of its own.
//!
//! A container is for one session, has no privileges, no network unless the policy names one, and a read-only root. Its
//! first process is our own supervisor, attached to this process by one stream over which all commands of the session
//! run: killing a command kills it *in there*, and a worker that dies takes its containers along, because their input
//! ends. Files are used from this side of the workspace, as with every backend; it is mounted, or copied in and out.

mod container;
mod copy;
mod create;
mod describe;
mod engine;
mod image;
mod labels;
mod link;
mod options;
mod places;
mod pool;
mod record;
mod sandbox;
mod supervisor_volume;

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
use self::{pool::Pool, sandbox::DockerSandbox};
use crate::{
    path::shown,
    traits::{Backend, Existing, ExistingKind, Feature, Sandbox, SandboxRequest},
};

#[derive(Clone, Debug)]
pub struct DockerBackend(Arc<Pool>);

impl DockerBackend {
    /// Nothing is asked of the engine yet: one that is down is an error of whoever needs it, while it is.
    #[must_use]
    pub fn new(options: DockerOptions) -> Self {
        Self(Arc::new(Pool::new(options)))
    }

    async fn check_network(&self, network: &str) -> Result<()> {
        let engine = &self.0.workshop.engine;
        let found = engine.ask(|docker| async move { docker.inspect_network(network, None).await }).await;
        match found {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => {
                let message = format!("the engine has no network {}", shown(network));
                Err(Error::new(Code::NotConfigured, message).at("network"))
            }
            Err(failure) => Err(failure.to("look at the network")),
        }
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Docker
    }

    async fn check(&self, request: &SandboxRequest) -> Result<()> {
        let shape = Pool::shape(request)?;
        image::find(&self.0.workshop.engine, Some(&shape.image)).await?;
        if create::has_network(&shape) {
            self.check_network(&shape.network).await?;
        }
        Ok(())
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let options = &self.0.options;
        let files = sandbox::open_workspace(&request.workspace_root, options).await?;
        let container = self.0.acquire(request).await?;
        Ok(Arc::new(DockerSandbox::new(files, container, options)))
    }

    fn feed(&self, time: Duration) {
        self.0.feed(Instant::now() + time);
    }

    fn serve(&self, worker: WorkerId) {
        self.0.serve(worker);
    }

    async fn engine(&self) -> Result<String> {
        Ok(self.0.workshop.engine.client().await?.id)
    }

    async fn keep(&self, stop: CancellationToken) {
        self.0.keep(stop).await;
    }

    async fn list(&self) -> Result<Vec<Existing>> {
        let mut found = self.0.find(&[]).await?;
        found.extend(self.0.find_volumes().await?);
        Ok(found)
    }

    async fn remove(&self, existing: &Existing) -> Result<()> {
        let engine = &self.0.workshop.engine;
        match existing.what {
            ExistingKind::Container => engine.remove_container(&existing.handle).await,
            ExistingKind::Volume => engine.remove_volume(&existing.handle).await,
        }
    }

    async fn describe(&self) -> Vec<Feature> {
        let engine = &self.0.workshop.engine;
        let known = async { Ok((engine.client().await?, engine.info().await?)) };
        match known.await {
            Ok((client, info)) => describe::features(&client, &info, &self.0.options),
            Err(error) => describe::no_engine(Error::chain(&error)),
        }
    }
}
