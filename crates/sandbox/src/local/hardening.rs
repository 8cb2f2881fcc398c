//! Confinement of local commands: what works on this machine, and how a command gets it.
//!
//! Commands never have capabilities, and another user than root where the workspace has another owner. Beyond
//! that, they are kept from the worker's process in any case where the machine can do that, and from the
//! machine's files, sockets and network if hardening is wanted.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use remuda_domain::error::{Error, Result};
use remuda_supervisor::{Confinement, User};
use tokio::{process::Command as Process, time::timeout};

use super::{
    LocalOptions,
    bubblewrap::{self, INNER_PROGRAM, TEMP_DIRECTORY, View},
    command_user::CommandUser,
    system_files,
};
use crate::supervisor_binary;

/// Timeout of the detection, which normally takes milliseconds.
const CHECK_TIME: Duration = Duration::from_secs(10);

/// Whether commands are confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hardening {
    /// Not confined: a command may use the files and the network of its user.
    #[default]
    None,
    /// Confined as far as this machine can.
    Auto,
    /// Confined to the workspace and a minimal system, or no command runs.
    Required,
}

/// The method that confines commands on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfinementMethod {
    None,
    /// Landlock keeps commands from other processes.
    Processes,
    /// bubblewrap hides other processes.
    ProcessNamespace(PathBuf),
    /// Landlock and seccomp for files, network and system calls, and for processes if the kernel can. Unix sockets
    /// of the host stay reachable.
    Landlock {
        processes: bool,
    },
    /// bubblewrap hides everything but the workspace and a minimal system.
    Bubblewrap(PathBuf),
}

impl ConfinementMethod {
    /// Detects the first method that works.
    pub(super) async fn detect(options: &LocalOptions) -> Result<Self> {
        let bubblewrap = options.bubblewrap.as_deref();
        if options.hardening != Hardening::None {
            if let Some(program) = bubblewrap
                && bubblewrap_works(program, true).await?
            {
                return Ok(Self::Bubblewrap(program.to_owned()));
            }
            if options.hardening == Hardening::Required {
                let message =
                    "commands must be confined, which needs bubblewrap 0.7 or later and user namespaces";
                return Err(Error::unavailable(message).at("sandbox.hardening"));
            }
            if options.landlock && landlock_works("files").await? {
                return Ok(Self::Landlock { processes: landlock_works("processes").await? });
            }
            tracing::warn!(
                "commands are not confined: neither bubblewrap nor Landlock works on this machine"
            );
        }
        if options.landlock && landlock_works("processes").await? {
            return Ok(Self::Processes);
        }
        match bubblewrap {
            Some(program) if bubblewrap_works(program, false).await? => {
                Ok(Self::ProcessNamespace(program.to_owned()))
            }
            _ => Ok(Self::None),
        }
    }

    /// Whether commands can neither signal nor trace the worker.
    pub(super) fn protects_worker(&self) -> bool {
        match self {
            Self::None => false,
            Self::Landlock { processes } => *processes,
            Self::Processes | Self::ProcessNamespace(_) | Self::Bubblewrap(_) => true,
        }
    }
}

/// How the commands of one sandbox are confined.
#[derive(Debug)]
pub(super) struct CommandConfinement {
    pub(super) method: ConfinementMethod,
    /// Real path of the workspace.
    pub(super) workspace: PathBuf,
    pub(super) user: CommandUser,
    pub(super) network: bool,
    pub(super) scratch_bytes: u64,
    /// Paths of the host that confined commands see.
    pub(super) readable: Vec<PathBuf>,
}

impl CommandConfinement {
    pub(super) fn new(
        method: ConfinementMethod,
        directory: &OwnedFd,
        network: bool,
        scratch_bytes: u64,
        readable: &[PathBuf],
    ) -> Result<Self> {
        let workspace = path_of_descriptor(directory)?;
        // Inside of bubblewrap everybody can search the directories above the workspace.
        let above =
            if matches!(method, ConfinementMethod::Bubblewrap(_)) { Path::new("/") } else { &workspace };
        let user = CommandUser::of(directory, above)?;
        let mut visible = system_files::list();
        visible.extend_from_slice(readable);
        Ok(Self { method, workspace, user, network, scratch_bytes, readable: visible })
    }

    /// Builds the process that becomes the supervisor, inside or outside of bubblewrap.
    pub(super) fn supervisor(&self, directory: &OwnedFd) -> Result<Process> {
        let (program, view) = match &self.method {
            ConfinementMethod::Bubblewrap(program) => (program, self.view()),
            ConfinementMethod::ProcessNamespace(program) => (program, View::Host),
            ConfinementMethod::None | ConfinementMethod::Processes | ConfinementMethod::Landlock { .. } => {
                let mut process = Process::new(supervisor_binary::path()?);
                // By descriptor: by the time the child starts, the path could be another directory.
                process.current_dir(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()));
                process.stderr(Stdio::null());
                return Ok(process);
            }
        };
        let mut process = bubblewrap::command(program, self.user, view)?;
        // By path: another directory of that name is equally confined.
        process.arg("--chdir").arg(path_of_descriptor(directory)?).args(["--", INNER_PROGRAM]);
        Ok(process)
    }

    fn view(&self) -> View<'_> {
        View::Workspace {
            workspace: &self.workspace,
            readable: &self.readable,
            scratch_bytes: self.scratch_bytes,
            network: self.network,
        }
    }

    /// The rules that the supervisor must enforce itself.
    pub(super) fn rules(&self) -> Result<Option<Confinement>> {
        let network = self.network;
        Ok(match &self.method {
            ConfinementMethod::None | ConfinementMethod::ProcessNamespace(_) => None,
            ConfinementMethod::Processes => Some(Confinement::Processes),
            ConfinementMethod::Bubblewrap(_) => Some(Confinement::Namespaced { host_network: network }),
            ConfinementMethod::Landlock { .. } => {
                let unnamed = || Error::unavailable("a workspace whose path is not UTF-8 cannot be confined");
                let workspace = self.workspace.to_str().ok_or_else(unnamed)?;
                let mut readable = vec!["/proc".to_owned()];
                readable.extend(self.readable.iter().filter_map(|path| path.to_str()).map(str::to_owned));
                let writable = vec![workspace.to_owned(), TEMP_DIRECTORY.to_owned()];
                Some(Confinement::Files { readable, writable, network })
            }
        })
    }

    /// Another user than this process's.
    pub(super) fn other_user(&self) -> Option<User> {
        match self.user {
            CommandUser::Owner(user) => Some(user),
            CommandUser::Own | CommandUser::RootForFiles => None,
        }
    }

    /// Variables that replace those of this process, whose own directories the command cannot use.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let workspace = self.workspace.to_string_lossy();
        match &self.method {
            ConfinementMethod::Bubblewrap(_) => {
                vec![variable("HOME", TEMP_DIRECTORY), variable("TMPDIR", TEMP_DIRECTORY)]
            }
            // The host's directory for temporary files has other users, who could leave settings there.
            ConfinementMethod::Landlock { .. } => {
                vec![variable("HOME", &workspace), variable("TMPDIR", TEMP_DIRECTORY)]
            }
            _ if self.other_user().is_some() => vec![variable("HOME", &workspace)],
            _ => Vec::new(),
        }
    }
}

/// The path of an open file or directory.
fn path_of_descriptor(open: &impl AsFd) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", open.as_fd().as_raw_fd());
    std::fs::read_link(link)
        .map_err(|error| Error::unavailable("cannot determine the path of the workspace").with_source(error))
}

async fn bubblewrap_works(program: &Path, files: bool) -> Result<bool> {
    let readable = system_files::list();
    let view = if files {
        View::Workspace {
            workspace: Path::new("/var"),
            readable: &readable,
            scratch_bytes: 1 << 20,
            network: false,
        }
    } else {
        View::Host
    };
    let mut process = bubblewrap::command(program, CommandUser::Own, view)?;
    process.args(["--", INNER_PROGRAM, "check-inside"]);
    // Exit code 2: the supervisor was started and rejected the unknown argument.
    Ok(status(process).await.is_some_and(|status| status.code() == Some(2)))
}

async fn landlock_works(what: &str) -> Result<bool> {
    let mut process = Process::new(supervisor_binary::path()?);
    process.args(["check-confinement", what]).stderr(Stdio::null());
    Ok(status(process).await.is_some_and(|status| status.success()))
}

async fn status(mut process: Process) -> Option<ExitStatus> {
    process.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    match timeout(CHECK_TIME, process.status()).await {
        Ok(Ok(status)) => Some(status),
        Ok(Err(error)) => {
            tracing::debug!(%error, "confinement check could not be started");
            None
        }
        Err(_) => None,
    }
}
