//! What a Docker backend is told.

use std::{sync::Arc, time::Duration};

use nix::unistd::{Gid, Uid};
use remuda_domain::{WorkerId, execution::ResourceLimits};

use super::create::ContainerUser;
use crate::{book::SandboxBook, guard::Guard};

/// Where the engine is unless somebody says otherwise.
pub const DEFAULT_DOCKER_HOST: &str = "unix:///var/run/docker.sock";

#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The engine's address: `unix:///…` or `tcp://…`.
    pub host: String,
    /// Tells our containers from those of another Remuda on the same engine.
    pub installation: String,
    /// Who makes containers for nobody yet. Those for a session carry the worker of the request.
    pub worker: WorkerId,
    /// Who commands are.
    pub user: ContainerUser,
    /// The engine's runtime, like `runsc`; its default if `None`.
    pub runtime: Option<String>,
    /// Containers that are kept ready.
    pub warm: Vec<WarmTarget>,
    /// An idle container is stopped after this time,
    pub pause_after: Duration,
    /// and removed after this.
    pub remove_after: Duration,
    /// Of all containers together, spare ones included.
    pub max_containers: usize,
    /// How long a command may tidy up between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Keeps a worker that was stopped for too long from writing files.
    pub guard: Option<Arc<Guard>>,
    /// Where to write down what is made.
    pub book: Option<Arc<dyn SandboxBook>>,
}

/// Containers of one shape, for sessions whose workspace is copied: a mount cannot be changed afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmTarget {
    pub image: String,
    pub count: usize,
    pub network: String,
    pub limits: ResourceLimits,
}

impl DockerOptions {
    #[must_use]
    pub fn new(host: impl Into<String>, installation: impl Into<String>, worker: WorkerId) -> Self {
        Self {
            host: host.into(),
            installation: installation.into(),
            worker,
            user: ContainerUser::of_this_process(),
            runtime: None,
            warm: Vec::new(),
            pause_after: Duration::from_secs(60),
            remove_after: Duration::from_secs(15 * 60),
            max_containers: 64,
            grace: Duration::from_millis(500),
            guard: None,
            book: None,
        }
    }
}

impl ContainerUser {
    /// The user of this process, so that both may use the same files; nobody instead of root.
    #[must_use]
    pub fn of_this_process() -> Self {
        let (uid, gid) = (Uid::effective(), Gid::effective());
        if uid.is_root() { Self::NOBODY } else { Self { uid: uid.as_raw(), gid: gid.as_raw() } }
    }
}
