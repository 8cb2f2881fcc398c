//! Confining commands on this machine: by bubblewrap where it works, else by Landlock and seccomp.
//!
//! Either way everything can be read that this user may read, but only the workspace and `/tmp` (of its own, with
//! bubblewrap) can be written, and without a network in the policy there is none. What cannot be reached by a path or an
//! address is out of reach; what a readable socket of the machine offers is not, except beneath `/run` with bubblewrap.

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

/// Where commands find room for temporary files when they are confined.
pub(super) const TEMPORARY: &str = "/tmp";
/// Finding out what works takes milliseconds.
const CHECK_TIME: Duration = Duration::from_secs(10);

/// How much commands are to be confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hardening {
    /// Not at all: a command may do what this user may.
    #[default]
    None,
    /// By what works here, which may be nothing.
    Auto,
    /// Where nothing works, no command runs.
    Required,
}

/// What confines commands here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Walls {
    None,
    Bubblewrap(PathBuf),
    Kernel,
}

impl Walls {
    /// Finds out what works.
    pub(super) async fn find(hardening: Hardening, bubblewrap: Option<&Path>) -> Result<Self> {
        if hardening == Hardening::None {
            return Ok(Self::None);
        }
        if let Some(program) = bubblewrap
            && bubblewrap_works(program).await?
        {
            return Ok(Self::Bubblewrap(program.to_owned()));
        }
        if kernel_can().await? {
            return Ok(Self::Kernel);
        }
        if hardening == Hardening::Required {
            let message = "commands must be confined, and neither bubblewrap nor Landlock works here";
            return Err(Error::unavailable(message));
        }
        tracing::warn!("commands are not confined: neither bubblewrap nor Landlock works here");
        Ok(Self::None)
    }

    /// The process that becomes the supervisor, on whichever side of the walls it belongs.
    pub(super) fn supervisor(&self, place: &Place<'_>, network: bool) -> Result<Process> {
        let Self::Bubblewrap(program) = self else {
            let mut process = Process::new(supervisor_binary::path()?);
            // By descriptor: the path could be another directory by the time the child is there.
            process.current_dir(format!("/proc/self/fd/{}", place.directory.as_fd().as_raw_fd()));
            process.stderr(Stdio::null());
            return Ok(process);
        };
        let mut process = bubblewrap(program, place.workspace, network)?;
        // By name: another directory of that name is as confined as this one.
        process.arg("--chdir").arg(path_of(place.directory)?).args(["--", INNER_PROGRAM]);
        Ok(process)
    }

    /// What the supervisor is to enforce by itself.
    pub(super) fn confinement(&self, workspace: &Path, network: bool) -> Result<Option<Confinement>> {
        if *self != Self::Kernel {
            return Ok(None);
        }
        let workspace = workspace
            .to_str()
            .ok_or_else(|| Error::unavailable("a workspace whose path is not UTF-8 cannot be confined"))?;
        let writable = vec![workspace.to_owned(), TEMPORARY.to_owned()];
        Ok(Some(Confinement { writable, network }))
    }
}

/// Where a command runs.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) workspace: &'a Path,
    pub(super) directory: &'a OwnedFd,
}

/// The path of something that is open.
pub(super) fn path_of(open: &impl AsFd) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", open.as_fd().as_raw_fd());
    std::fs::read_link(link).map_err(|error| {
        Error::unavailable("the path of the workspace cannot be found out").with_source(error)
    })
}

/// The first one in `PATH`. Relative entries are not looked at: they could lead into a workspace.
pub(super) fn find_bubblewrap() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join("bwrap"))
        .find(|program| program.is_file())
}

/// Our program is in memory, and the only descriptor that can be handed over safely is a stream that nobody uses.
const INNER_PROGRAM: &str = "/proc/self/fd/2";

/// Up to the program. As the first process of its namespace, the supervisor cannot be killed by the command, and takes
/// everything along when it ends.
fn bubblewrap(program: &Path, workspace: &Path, network: bool) -> Result<Process> {
    let stderr = supervisor_binary::file()?.try_clone().map_err(not_copied)?;
    let mut process = Process::new(program);
    process
        .args(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"])
        .args(["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"])
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", TEMPORARY]);
    if !network {
        // Also no sockets of the machine's services.
        process.args(["--unshare-net", "--tmpfs", "/run"]);
    }
    process.arg("--bind").arg(workspace).arg(workspace).process_group(0).stderr(Stdio::from(stderr));
    Ok(process)
}

async fn bubblewrap_works(program: &Path) -> Result<bool> {
    let mut process = bubblewrap(program, Path::new("/var"), false)?;
    process.args(["--", INNER_PROGRAM, "check-confinement-inside"]);
    // Our program was reached, and does not know this argument.
    Ok(status(process).await.is_some_and(|status| status.code() == Some(2)))
}

async fn kernel_can() -> Result<bool> {
    let mut process = Process::new(supervisor_binary::path()?);
    process.arg("check-confinement").stderr(Stdio::null());
    Ok(status(process).await.is_some_and(|status| status.success()))
}

async fn status(mut process: Process) -> Option<ExitStatus> {
    process.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    match timeout(CHECK_TIME, process.status()).await {
        Ok(Ok(status)) => Some(status),
        Ok(Err(error)) => {
            tracing::debug!(%error, "what confines commands cannot be started");
            None
        }
        Err(_) => None,
    }
}

fn not_copied(error: io::Error) -> Error {
    Error::unavailable("the program that runs commands cannot be handed over").with_source(error)
}
