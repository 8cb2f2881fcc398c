//! The command line of bubblewrap, which starts the supervisor in namespaces of its own.
//!
//! The supervisor is PID 1 of its namespace: the command cannot kill it, sees no process of the host, and
//! everything in the namespace dies with it.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process::Stdio,
};

use remuda_domain::error::{Error, Result};
use tokio::process::Command as Process;

use super::command_user::CommandUser;
use crate::supervisor_binary;

/// Directory for temporary files, in memory.
pub(super) const TEMP_DIRECTORY: &str = "/tmp";

/// The supervisor program exists only in memory. Stderr is otherwise unused, so its descriptor hands the
/// program over.
pub(super) const INNER_PROGRAM: &str = "/proc/self/fd/2";

/// Capabilities of the supervisor, which switches to the user of its command.
const SWITCH: &[&str] = &["CAP_SETUID", "CAP_SETGID"];
const FILES: &[&str] = &["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID"];

/// The files that a command sees.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'a> {
    /// All of this machine's.
    Host,
    /// The workspace, these read-only paths, and temporary files up to a size.
    Workspace { workspace: &'a Path, readable: &'a [PathBuf], scratch_bytes: u64, network: bool },
}

/// The first `bwrap` in `PATH`. Relative entries are skipped: they could point into a workspace.
pub(super) fn find() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join("bwrap"))
        .find(|program| program.is_file())
}

/// The command line up to `--`.
pub(super) fn command(program: &Path, user: CommandUser, view: View<'_>) -> Result<Process> {
    let stderr = supervisor_binary::file()?.try_clone().map_err(not_copied)?;
    let mut process = Process::new(program);
    process.process_group(0).stderr(Stdio::from(stderr));
    process.args(["--unshare-pid", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]);
    let capabilities = match user {
        CommandUser::Own => &[],
        CommandUser::Owner(_) => SWITCH,
        CommandUser::RootForFiles => FILES,
    };
    if capabilities.is_empty() {
        process.arg("--unshare-user");
    }
    // A user namespace has one user only, so root uses none where it needs another one.
    for capability in capabilities {
        process.args(["--cap-add", capability]);
    }
    match view {
        View::Host => {
            process.args(["--dev-bind", "/", "/", "--proc", "/proc"]);
        }
        View::Workspace { workspace, readable, scratch_bytes, network } => {
            process.args(["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
            if !network {
                process.arg("--unshare-net");
            }
            process.args(["--proc", "/proc", "--dev", "/dev"]);
            // Before what is mounted in it: bubblewrap would create it for its owner only.
            process.args(["--perms", "0755", "--dir", "/var"]);
            for directory in ["/dev/shm", TEMP_DIRECTORY, "/var/tmp"] {
                process.args(["--perms", "1777", "--size", &scratch_bytes.to_string()]);
                process.args(["--tmpfs", directory]);
            }
            let mounted = readable.iter().map(PathBuf::as_path).chain([workspace]);
            let above: BTreeSet<&Path> = mounted.flat_map(|path| path.ancestors().skip(1)).collect();
            for directory in above.into_iter().filter(|directory| directory.parent().is_some()) {
                process.args(["--perms", "0755", "--dir"]).arg(directory);
            }
            for path in readable {
                process.arg("--ro-bind-try").arg(path).arg(path);
            }
            process.arg("--bind").arg(workspace).arg(workspace);
            // /dev and / are in memory, without a limit of their own. In /proc root may change settings of the
            // kernel, without any capability.
            for directory in ["/dev", "/proc", "/"] {
                process.args(["--remount-ro", directory]);
            }
        }
    }
    Ok(process)
}

fn not_copied(error: io::Error) -> Error {
    Error::unavailable("cannot duplicate the supervisor program's descriptor").with_source(error)
}
