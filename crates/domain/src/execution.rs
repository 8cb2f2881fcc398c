//! Where the tools of a session execute.

mod policy;

use serde::{Deserialize, Serialize};

pub use self::policy::{Policies, TenantPolicy, check_image};
use crate::{
    Timestamp,
    error::{Error, Result},
    ids::{SandboxId, SessionId, TenantId, WorkerId},
    session::Epoch,
};

/// A way to execute tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Not at all: a session that only talks.
    None,
    /// As processes of the worker's user.
    Local,
    /// In a container of the session's own.
    Docker,
}

impl BackendKind {
    pub const ALL: [Self; 3] = [Self::None, Self::Local, Self::Docker];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Local => "local",
            Self::Docker => "docker",
        }
    }

    pub fn parse(field: &str, name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        known.ok_or_else(|| Error::invalid(field, "expected none, local or docker"))
    }
}

/// What a session asks for when it is created. What is left open is its tenant's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionChoice {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceAccess>,
}

impl ExecutionChoice {
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a container gets at the files of the workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceAccess {
    /// The directory itself is mounted.
    #[default]
    Mount,
    /// The container has a copy; what a call changed is copied back when it ends.
    Copy,
}

impl WorkspaceAccess {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Copy => "copy",
        }
    }

    pub fn parse(field: &str, name: &str) -> Result<Self> {
        let known = [Self::Mount, Self::Copy].into_iter().find(|access| access.as_str() == name);
        known.ok_or_else(|| Error::invalid(field, "expected mount or copy"))
    }
}

/// What a session may use, decided: its choice within what its tenant is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionPolicy {
    pub backend: BackendKind,
    /// For backends that need one.
    pub image: Option<String>,
    /// `none`, or the name of a network that the operator has made.
    pub network: String,
    pub workspace: WorkspaceAccess,
    pub limits: ResourceLimits,
}

impl Default for ExecutionPolicy {
    fn default() -> Self {
        Self {
            backend: BackendKind::Local,
            image: None,
            network: NO_NETWORK.to_owned(),
            workspace: WorkspaceAccess::default(),
            limits: ResourceLimits::default(),
        }
    }
}

/// The network of those who have none.
pub const NO_NETWORK: &str = "none";

/// What the processes of one sandbox may use. The local backend applies them to each process, a container to all of its
/// processes together. `None` leaves it to the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub processes: Option<u64>,
    /// The largest file a command may write.
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// Of a container: `/tmp`, and the workspace if it is a copy.
    pub scratch_bytes: u64,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            cpus: None,
            processes: Some(1024),
            file_bytes: Some(8 << 30),
            open_files: Some(4096),
            scratch_bytes: 512 << 20,
        }
    }
}

/// A sandbox that exists, or should: what the store knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRecord {
    pub id: SandboxId,
    /// Spare ones belong to nobody yet.
    pub holder: Option<Holder>,
    pub worker: WorkerId,
    pub backend: BackendKind,
    /// Which engine it is on, for machines with several.
    pub engine: String,
    /// What the engine calls it, once it exists.
    pub handle: Option<String>,
    pub image: String,
    /// Which contents the image had.
    pub digest: String,
    pub state: SandboxState,
    pub created_at: Timestamp,
    pub used_at: Timestamp,
}

/// Whom a sandbox is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub tenant: TenantId,
    pub session: SessionId,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Recorded before anything is made, so that what a crash leaves half-made is known.
    Creating,
    /// Made in advance, for nobody yet.
    Spare,
    Active,
    Paused,
}

impl SandboxState {
    pub const ALL: [Self; 4] = [Self::Creating, Self::Spare, Self::Active, Self::Paused];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Spare => "spare",
            Self::Active => "active",
            Self::Paused => "paused",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// Where a tool call was executed, as it is recorded with the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub backend: BackendKind,
    #[serde(rename = "sandbox_id")]
    pub sandbox: SandboxId,
    pub image: String,
    pub digest: String,
}
