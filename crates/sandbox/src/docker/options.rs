//! Configuration of the Docker backend.

use std::{sync::Arc, time::Duration};

use nix::unistd::{Gid, Uid};
use remuda_domain::WorkerId;

use super::create::ContainerUser;
use crate::{
    guard::Guard,
    registry::SandboxRegistry,
    remote::{RemoteOptions, WarmTarget},
};

/// Default address of the engine.
pub const DEFAULT_DOCKER_HOST: &str = "unix:///var/run/docker.sock";

#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The engine's address: `unix:///…` or `tcp://…`.
    pub host: String,
    /// Distinguishes our containers from those of other Remuda installations on the same engine.
    pub installation: String,
    /// Worker id for spare containers. Those for a session carry the worker of the request.
    pub worker: WorkerId,
    /// User of commands.
    pub user: ContainerUser,
    /// OCI runtime, like `runsc`; the engine's default if `None`.
    pub runtime: Option<String>,
    /// Spare containers to keep ready.
    pub warm: Vec<WarmTarget>,
    /// An idle container is paused after this time.
    pub pause_after: Duration,
    /// An idle container is removed after this time.
    pub remove_after: Duration,
    /// Limit of all containers, including spares.
    pub max_containers: usize,
    /// Grace period between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Prevents file writes of a worker that was stopped for too long.
    pub guard: Option<Arc<Guard>>,
    /// Records created containers.
    pub registry: Option<Arc<dyn SandboxRegistry>>,
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
            registry: None,
        }
    }
}

impl From<DockerOptions> for RemoteOptions {
    fn from(options: DockerOptions) -> Self {
        Self {
            installation: options.installation,
            worker: options.worker,
            warm: options.warm,
            pause_after: Some(options.pause_after),
            remove_after: options.remove_after,
            max_instances: options.max_containers,
            grace: options.grace,
            guard: options.guard,
            registry: options.registry,
        }
    }
}

impl ContainerUser {
    /// The user of this process, so that both can use the same files; `nobody` instead of root.
    #[must_use]
    pub fn of_this_process() -> Self {
        let (uid, gid) = (Uid::effective(), Gid::effective());
        if uid.is_root() { Self::NOBODY } else { Self { uid: uid.as_raw(), gid: gid.as_raw() } }
    }
}
