//! Where a session's tools execute.

mod policy;

use serde::{Deserialize, Serialize};

pub use self::policy::{Policies, TenantPolicy, check_image};
use crate::{
    Timestamp,
    error::{Error, Result},
    ids::{SandboxId, SessionId, TenantId, WorkerId},
    session::Epoch,
};

/// How tools are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Not at all: the session has no tools.
    None,
    /// As processes of the worker's user.
    Local,
    /// In a container per session.
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

    /// Whether a session gets an instance of its own (a container), which is created from an image, may have a
    /// network, and is recorded in the store.
    #[must_use]
    pub const fn has_instances(self) -> bool {
        match self {
            Self::None | Self::Local => false,
            Self::Docker => true,
        }
    }

    pub fn parse(field: &str, name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        known.ok_or_else(|| Error::invalid(field, "expected none, local or docker"))
    }
}

/// What a session requests when it is created. Missing values default to the tenant's.
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

/// How a container accesses the files of the workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceAccess {
    /// The directory itself is mounted.
    #[default]
    Mount,
    /// The container has a copy; changes are copied back when a call ends.
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

/// The effective settings of a session: its choice within what its tenant is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionPolicy {
    pub backend: BackendKind,
    /// For backends that need one.
    pub image: Option<String>,
    /// `none`, or the name of a network created by the operator.
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

/// The name that stands for no network.
pub const NO_NETWORK: &str = "none";

/// Resource limits of one sandbox. The local backend applies them to each process, a container to all of its
/// processes together. `None` means no limit, except for what [`of_container`](Self::of_container) sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub processes: Option<u64>,
    /// The largest file that a command may write.
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// Size of a `/tmp` in memory (in containers, and of confined commands), and of a container's copy of the workspace.
    pub scratch_bytes: u64,
    /// Free bytes of the workspace's file system: a command that writes more is killed. 0 for no limit.
    pub disk_reserve_bytes: u64,
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
            disk_reserve_bytes: 512 << 20,
        }
    }
}

impl ResourceLimits {
    /// Memory of a container whose policy sets none.
    pub const CONTAINER_MEMORY_BYTES: u64 = 2 << 30;
    /// CPUs of a container whose policy sets none.
    pub const CONTAINER_CPUS: f64 = 2.0;

    /// With limits for all that a container shares with its host. A limit of memory for all containers would be wrong
    /// for local commands, for which it bounds the address space of each process.
    #[must_use]
    pub fn of_container(mut self) -> Self {
        let Self { memory_bytes, cpus, processes, .. } = Self::default();
        self.memory_bytes = self.memory_bytes.or(memory_bytes).or(Some(Self::CONTAINER_MEMORY_BYTES));
        self.cpus = self.cpus.or(cpus).or(Some(Self::CONTAINER_CPUS));
        self.processes = self.processes.or(processes);
        self
    }
}

/// The store's record of a sandbox that exists or is being created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRecord {
    pub id: SandboxId,
    /// `None` for spare sandboxes.
    pub holder: Option<Holder>,
    pub worker: WorkerId,
    pub backend: BackendKind,
    /// The container engine it is on, for machines with several.
    pub engine: String,
    /// The engine's name for it, once it exists.
    pub handle: Option<String>,
    pub image: String,
    /// Digest of the image's contents.
    pub digest: String,
    pub state: SandboxState,
    pub created_at: Timestamp,
    pub used_at: Timestamp,
}

/// The session that a sandbox belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub tenant: TenantId,
    pub session: SessionId,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Recorded before creation, so that a sandbox left half-made by a crash is known.
    Creating,
    /// Created in advance, not assigned yet.
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

/// Where a tool call was executed, as recorded with the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionSite {
    pub backend: BackendKind,
    #[serde(rename = "sandbox_id")]
    pub sandbox: SandboxId,
    pub image: String,
    pub digest: String,
}
