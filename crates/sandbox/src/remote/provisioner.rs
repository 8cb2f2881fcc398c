//! The trait that a backend of instances implements, and its data types.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use remuda_domain::{
    SandboxId, SessionId,
    error::{Error, Result},
    execution::{BackendKind, Holder, ResourceLimits},
};

use super::{
    byte_stream::ByteStream,
    labels::{self, Creator},
};
use crate::traits::{Feature, SandboxRequest};

/// Creates and removes instances: containers, pods, virtual machines.
///
/// An instance runs the supervisor program ([`supervisor_binary`](crate::supervisor_binary)) as its first
/// process, with the argument `init`, and its commands as that program's children. Everything else, from the
/// commands to the pool, is done by [`RemoteBackend`](super::RemoteBackend) over one byte stream.
///
/// Implementors must uphold:
///
/// - The stream is the stdin and stdout of the first process. When this side of the stream is closed, also
///   because this process was killed, the first process reads the end of its stdin. When the first process
///   has ended, so has every other process of the instance.
/// - Labels are stored with an instance when it is created, and are listed after this process has died.
/// - Calls end by themselves. [`create`](Self::create) and [`start`](Self::start) run in tasks and are never
///   cancelled.
#[async_trait]
pub trait Provisioner: fmt::Debug + Send + Sync + 'static {
    fn kind(&self) -> BackendKind;

    /// What users call an instance, in messages: `container`, `pod`.
    fn noun(&self) -> &'static str;

    /// Decides which instances can serve a request: those with an equal spec. Rejects requests that none can
    /// serve.
    fn spec(&self, request: &SandboxRequest) -> Result<InstanceSpec>;

    /// Finds the image of a spec and checks that it is usable.
    async fn image(&self, spec: &InstanceSpec) -> Result<Image>;

    /// Checks whether an instance could be created now, without creating anything.
    async fn check(&self, spec: &InstanceSpec) -> Result<()> {
        self.image(spec).await.map(drop)
    }

    /// Makes a workspace accessible to the processes of instances. The directory exists.
    async fn prepare_workspace(&self, directory: &Path) -> Result<()> {
        let _ = directory;
        Ok(())
    }

    /// Creates an instance that does not run yet, and returns its handle. A failed call leaves nothing behind.
    async fn create(&self, plan: &InstancePlan) -> Result<String>;

    /// Starts an instance, connected from its first byte of output. After a failure the caller removes it.
    async fn start(&self, handle: &str, plan: &InstancePlan) -> Result<RunningInstance, StartError>;

    /// Removes an instance in any state and returns when it is gone. Succeeds if it is already gone.
    async fn remove(&self, handle: &str) -> Result<()>;

    /// Lists instances of all workers, in any state. May list more than match: the caller compares labels.
    async fn list(&self, filter: &ListFilter<'_>) -> Result<Vec<FoundResource>>;

    /// Records at the instance that it belongs to this holder from now on, so that [`list`](Self::list)
    /// reports it.
    async fn assign(&self, handle: &str, sandbox: SandboxId, holder: &Holder) -> Result<()>;

    /// Suspends the processes of an instance. Only called if [`RemoteOptions::pause_after`] is set.
    ///
    /// [`RemoteOptions::pause_after`]: super::RemoteOptions::pause_after
    async fn pause(&self, handle: &str) -> Result<()> {
        let _ = handle;
        Err(Error::internal("this backend cannot pause instances"))
    }

    /// Resumes a paused instance.
    async fn unpause(&self, handle: &str) -> Result<()> {
        let _ = handle;
        Err(Error::internal("this backend cannot pause instances"))
    }

    /// Lists what instances share, like volumes, of all workers.
    async fn list_shared(&self, filter: &ListFilter<'_>) -> Result<Vec<FoundResource>> {
        let _ = filter;
        Ok(Vec::new())
    }

    /// Removes a resource that [`list_shared`](Self::list_shared) found. Succeeds if it is already gone.
    async fn remove_shared(&self, handle: &str) -> Result<()> {
        let _ = handle;
        Ok(())
    }

    /// Removes what the instances of this backend shared. Called after all of them were removed.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Id of the engine, for machines with several.
    async fn engine_id(&self) -> Result<String> {
        Ok(String::new())
    }

    /// What the backend enforces on this machine.
    async fn describe(&self) -> Vec<Feature>;
}

/// Properties that decide whether an instance can serve a request.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceSpec {
    /// Empty for backends without images.
    pub image: String,
    pub network: String,
    pub limits: ResourceLimits,
    /// Directory of this machine that is the workspace. Without it, the instance has a copy.
    pub mount: Option<PathBuf>,
}

/// An image that instances are created from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The requested name.
    pub name: String,
    /// Id of its exact contents, from which instances are created: a name may be moved to another image.
    pub id: String,
    /// The registry's digest; the id if the image came from no registry.
    pub digest: String,
    /// Its `PATH`.
    pub path: String,
}

/// All that identifies a new instance.
#[derive(Clone, Debug)]
pub struct InstancePlan {
    pub sandbox: SandboxId,
    pub creator: Creator,
    /// `None` for a spare.
    pub holder: Option<Holder>,
    pub image: Image,
    pub spec: InstanceSpec,
}

impl InstancePlan {
    /// The labels to store with the instance.
    #[must_use]
    pub fn labels(&self) -> HashMap<String, String> {
        let mut labels = self.creator.labels(self.sandbox, self.holder.as_ref());
        labels.insert(labels::IMAGE.to_owned(), self.image.name.clone());
        labels.insert(labels::DIGEST.to_owned(), self.image.digest.clone());
        labels
    }
}

/// A started instance, as seen from this side of its stream.
#[derive(Debug)]
pub struct RunningInstance {
    pub stream: ByteStream,
    /// Path of the supervisor program in the instance.
    pub supervisor: String,
    /// Path of the workspace as commands see it.
    pub workspace: String,
    /// Base environment of commands.
    pub env: Vec<(String, String)>,
}

/// Why an instance did not start.
#[derive(Debug)]
pub enum StartError {
    Failed(Error),
    /// Something that instances share was lost, and the next [`Provisioner::create`] makes it again: another
    /// instance is worth one attempt.
    Retry(Error),
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Which resources to list.
#[derive(Clone, Copy, Debug)]
pub struct ListFilter<'a> {
    pub installation: &'a str,
    /// Only those of one backend of one process.
    pub backend: Option<&'a str>,
    /// Only those of one session, assigned at creation or later.
    pub session: Option<SessionId>,
}

impl ListFilter<'_> {
    /// The labels that a matching resource has. They cannot tell the session of a spare that was assigned.
    #[must_use]
    pub fn labels(&self) -> Vec<(&'static str, &str)> {
        let mut labels = vec![(labels::INSTALLATION, self.installation)];
        labels.extend(self.backend.map(|backend| (labels::BACKEND, backend)));
        labels
    }
}

/// A resource as the engine reports it.
#[derive(Clone, Debug)]
pub struct FoundResource {
    pub handle: String,
    pub labels: HashMap<String, String>,
    /// The holder of the last [`Provisioner::assign`]. May be `None` where labels tell the holder.
    pub assigned: Option<Holder>,
}
