//! Confinement of local commands: by bubblewrap where it works, else by Landlock and seccomp.
//!
//! In both cases a command can read everything that this user may read, but can write only the workspace and
//! `/tmp` (a private one with bubblewrap), and has no network unless the policy names one. Resources behind a
//! readable Unix socket of the host stay reachable, except those beneath `/run` with bubblewrap.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use remuda_domain::error::{Error, Result};
use remuda_supervisor::Confinement;
use tokio::{process::Command as Process, time::timeout};

use crate::supervisor_binary;

/// Directory for temporary files of confined commands.
pub(super) const TEMP_DIRECTORY: &str = "/tmp";
/// Timeout of the detection, which normally takes milliseconds.
const CHECK_TIME: Duration = Duration::from_secs(10);

/// Whether commands are confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hardening {
    /// Not confined: a command may do what this user may.
    #[default]
    None,
    /// Confined if a method works on this machine.
    Auto,
    /// Confined, or no command runs.
    Required,
}

/// The method that confines commands on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfinementMethod {
    None,
    Bubblewrap(PathBuf),
    Landlock,
}

impl ConfinementMethod {
    /// Detects the first method that works.
    pub(super) async fn detect(hardening: Hardening, bubblewrap: Option<&Path>) -> Result<Self> {
        if hardening == Hardening::None {
            return Ok(Self::None);
        }
        if let Some(program) = bubblewrap
            && bubblewrap_works(program).await?
        {
            return Ok(Self::Bubblewrap(program.to_owned()));
        }
        if landlock_works().await? {
            return Ok(Self::Landlock);
        }
        if hardening == Hardening::Required {
            let message = "commands must be confined, and neither bubblewrap nor Landlock works here";
            return Err(Error::unavailable(message));
        }
        tracing::warn!("commands are not confined: neither bubblewrap nor Landlock works on this machine");
        Ok(Self::None)
    }

    /// Builds the process that becomes the supervisor, inside or outside of bubblewrap.
    pub(super) fn supervisor(&self, location: &CommandDirectory<'_>, network: bool) -> Result<Process> {
        let Self::Bubblewrap(program) = self else {
            let mut process = Process::new(supervisor_binary::path()?);
            // By descriptor: by the time the child starts, the path could be another directory.
            process.current_dir(format!("/proc/self/fd/{}", location.directory.as_fd().as_raw_fd()));
            process.stderr(Stdio::null());
            return Ok(process);
        };
        let mut process = bubblewrap(program, location.workspace, network)?;
        // By path: another directory of that name is equally confined.
        process.arg("--chdir").arg(path_of_descriptor(location.directory)?).args(["--", INNER_PROGRAM]);
        Ok(process)
    }

    /// The confinement that the supervisor must enforce itself.
    pub(super) fn confinement(&self, workspace: &Path, network: bool) -> Result<Option<Confinement>> {
        if *self != Self::Landlock {
            return Ok(None);
        }
        let workspace = workspace
            .to_str()
            .ok_or_else(|| Error::unavailable("a workspace whose path is not UTF-8 cannot be confined"))?;
        let writable = vec![workspace.to_owned(), TEMP_DIRECTORY.to_owned()];
        Ok(Some(Confinement { writable, network }))
    }
}

/// The workspace and the working directory of a command.
#[derive(Debug)]
pub(super) struct CommandDirectory<'a> {
    pub(super) workspace: &'a Path,
    pub(super) directory: &'a OwnedFd,
}

/// The path of an open file or directory.
pub(super) fn path_of_descriptor(open: &impl AsFd) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", open.as_fd().as_raw_fd());
    std::fs::read_link(link)
        .map_err(|error| Error::unavailable("cannot determine the path of the workspace").with_source(error))
}

/// The first `bwrap` in `PATH`. Relative entries are skipped: they could point into a workspace.
pub(super) fn find_bubblewrap() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join("bwrap"))
        .find(|program| program.is_file())
}

/// The supervisor program exists only in memory. Stderr is otherwise unused, so its descriptor hands the
/// program over.
const INNER_PROGRAM: &str = "/proc/self/fd/2";

/// The bubblewrap command line up to the program. The supervisor runs as PID 1 of its namespace, so the
/// command cannot kill it, and everything in the namespace dies with it.
fn bubblewrap(program: &Path, workspace: &Path, network: bool) -> Result<Process> {
    let stderr = supervisor_binary::file()?.try_clone().map_err(not_copied)?;
    let mut process = Process::new(program);
    process
        .args(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"])
        .args(["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"])
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", TEMP_DIRECTORY]);
    if !network {
        // Hides the sockets of the host's services, too.
        process.args(["--unshare-net", "--tmpfs", "/run"]);
    }
    process.arg("--bind").arg(workspace).arg(workspace).process_group(0).stderr(Stdio::from(stderr));
    Ok(process)
}

async fn bubblewrap_works(program: &Path) -> Result<bool> {
    let mut process = bubblewrap(program, Path::new("/var"), false)?;
    process.args(["--", INNER_PROGRAM, "check-confinement-inside"]);
    // Exit code 2: the supervisor was started and rejected the unknown argument.
    Ok(status(process).await.is_some_and(|status| status.code() == Some(2)))
}

async fn landlock_works() -> Result<bool> {
    let mut process = Process::new(supervisor_binary::path()?);
    process.arg("check-confinement").stderr(Stdio::null());
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

fn not_copied(error: io::Error) -> Error {
    Error::unavailable("cannot duplicate the supervisor program's descriptor").with_source(error)
}
