//! The Docker backend: one container per session.
//!
//! A container has no privileges, no network unless the policy names one, and a read-only root. This module
//! speaks to the engine; the rest is [`remote`](crate::remote).

mod create;
mod describe;
mod engine;
mod image;
mod names;
mod options;
mod provisioner;
mod supervisor_volume;
mod workspace_owner;

pub use self::{
    create::ContainerUser,
    options::{DEFAULT_DOCKER_HOST, DockerOptions},
    provisioner::DockerProvisioner,
};
use crate::remote::RemoteBackend;
pub use crate::remote::WarmTarget;

pub type DockerBackend = RemoteBackend<DockerProvisioner>;

impl DockerBackend {
    /// Does not connect to the engine yet: an engine that is down fails only the calls that need it.
    #[must_use]
    pub fn new(options: DockerOptions) -> Self {
        let provisioner = DockerProvisioner::new(&options);
        Self::over(provisioner, options.into())
    }
}
