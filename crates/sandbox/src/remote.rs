//! Backends whose commands run in instances (containers, pods) that one byte stream connects to this process.
//!
//! An instance's first process is our own supervisor. The stream carries all commands of the session: a
//! command is killed *inside* the instance, and when a worker dies, its instances end because their stdin
//! closes. File tools work on the host's side of the workspace, as with every backend; the workspace is
//! mounted, or copied in and out.
//!
//! [`RemoteBackend`] is a whole [`Backend`] over a [`Provisioner`], which only creates and removes instances. It
//! keeps one instance per session, spares for new sessions, the limit of concurrent instances, their records,
//! and removes unused instances.

mod byte_stream;
mod connection;
mod instance;
mod instance_limit;
mod instance_record;
mod labels;
mod options;
mod pool;
mod provisioner;
mod sandbox;
mod workspace_copy;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{WorkerId, error::Result, execution::BackendKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::{
    byte_stream::ByteStream,
    labels::Creator,
    options::{RemoteOptions, WarmTarget},
    provisioner::{
        FoundResource, Image, InstancePlan, InstanceSpec, ListFilter, Provisioner, RunningInstance,
        StartError,
    },
};
use self::{pool::Pool, sandbox::RemoteSandbox};
use crate::{
    files::HostFiles,
    traits::{Backend, EngineResource, EngineResourceKind, Feature, Sandbox, SandboxRequest},
};

/// A backend over a provisioner of instances. Cheap to clone.
#[derive(Debug)]
pub struct RemoteBackend<P> {
    provisioner: Arc<P>,
    pool: Arc<Pool>,
}

impl<P: Provisioner> RemoteBackend<P> {
    /// Asks the provisioner for nothing yet: an engine that is down fails only the calls that need it.
    #[must_use]
    pub fn over(provisioner: P, options: RemoteOptions) -> Self {
        let provisioner = Arc::new(provisioner);
        let pool = Arc::new(Pool::new(Arc::clone(&provisioner) as Arc<dyn Provisioner>, options));
        Self { provisioner, pool }
    }
}

impl<P> Clone for RemoteBackend<P> {
    fn clone(&self) -> Self {
        Self { provisioner: Arc::clone(&self.provisioner), pool: Arc::clone(&self.pool) }
    }
}

#[async_trait]
impl<P: Provisioner> Backend for RemoteBackend<P> {
    fn kind(&self) -> BackendKind {
        self.provisioner.kind()
    }

    async fn check(&self, request: &SandboxRequest) -> Result<()> {
        self.provisioner.check(&self.provisioner.spec(request)?).await
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let options = &self.pool.options;
        let files = HostFiles::open(&request.workspace_root, options.guard.clone()).await?;
        self.provisioner.prepare_workspace(&request.workspace_root).await?;
        let instance = self.pool.acquire(request).await?;
        Ok(Arc::new(RemoteSandbox::new(files, instance, options.grace)))
    }

    fn feed_watchdog(&self, time: Duration) {
        self.pool.feed_watchdog(Instant::now() + time);
    }

    fn set_worker(&self, worker: WorkerId) {
        self.pool.set_worker(worker);
    }

    async fn engine_id(&self) -> Result<String> {
        self.provisioner.engine_id().await
    }

    async fn maintain(&self, stop: CancellationToken) {
        self.pool.maintain(stop).await;
    }

    async fn list(&self) -> Result<Vec<EngineResource>> {
        let mut found = self.pool.find(None, None).await?;
        found.extend(self.pool.find_shared().await?);
        Ok(found)
    }

    async fn remove(&self, existing: &EngineResource) -> Result<()> {
        match existing.kind {
            EngineResourceKind::Container => self.provisioner.remove(&existing.handle).await,
            EngineResourceKind::Volume => self.provisioner.remove_shared(&existing.handle).await,
        }
    }

    async fn describe(&self) -> Vec<Feature> {
        self.provisioner.describe().await
    }
}
