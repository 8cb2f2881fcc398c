//! Where tools execute: what each backend can promise on this machine.

use std::time::Duration;

use bollard::Docker;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};
use remuda_config::Config;
use remuda_sandbox::LocalOptions;
use tokio::time::timeout;

use super::Check;

const PATIENCE: Duration = Duration::from_secs(5);

/// What the local backend enforces here. It confines file tools, and no commands.
pub(super) fn local(config: &Config) -> Check {
    const NAME: &str = "local backend";
    let shell = LocalOptions::default().shell;
    if !shell.is_file() {
        return Check::problem(NAME, "there is neither /bin/bash nor /bin/sh", "install bash");
    }
    if !std::path::Path::new("/proc/self/fd").is_dir() {
        return Check::problem(NAME, "/proc is not mounted", "mount /proc: commands are started through it");
    }
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH);
    match openat2(AT_FDCWD, ".", how) {
        // Whatever it says of this directory, the kernel knows the call.
        Ok(_) | Err(Errno::ENOENT | Errno::EACCES) => {}
        Err(errno) => {
            return Check::problem(
                NAME,
                format!("file tools cannot be confined to their workspace (openat2: {})", errno.desc()),
                "use Linux 5.6 or later, and a container runtime that permits openat2",
            );
        }
    }
    let grace = humantime::format_duration(config.worker.kill_grace);
    Check::ok(
        NAME,
        format!(
            "{}; process groups are killed {grace} after SIGTERM, the environment is scrubbed, file tools stay in the \
             workspace (openat2); commands see this machine as this user does",
            shell.display()
        ),
    )
}

/// The Docker engine. The local backend works without, so its absence is no problem.
pub(super) async fn docker() -> Check {
    const NAME: &str = "Docker";
    let mend =
        "start Docker and let this user reach its socket (DOCKER_HOST), if tools should run in containers";
    let look = async {
        let docker = Docker::connect_with_local_defaults()?.negotiate_version().await?;
        docker.version().await
    };
    match timeout(PATIENCE, look).await {
        Ok(Ok(version)) => {
            let engine = version.version.unwrap_or_else(|| "of unknown version".to_owned());
            let api = version.api_version.unwrap_or_else(|| "unknown".to_owned());
            Check::ok(NAME, format!("engine {engine}, API {api}"))
        }
        Ok(Err(error)) => Check::warning(NAME, format!("no engine answers: {error}"), mend),
        Err(_) => Check::warning(NAME, format!("no engine answered within {} s", PATIENCE.as_secs()), mend),
    }
}
