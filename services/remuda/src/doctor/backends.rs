//! Checks what each sandbox backend can enforce on this machine.

use std::time::Duration;

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};
use remuda_config::{Config, Hardening};
use remuda_domain::WorkerId;
use remuda_sandbox::{
    Backend as _, Feature, FeatureState, LocalBackend, LocalOptions,
    docker::{DockerBackend, DockerOptions},
};
use tokio::time::timeout;

use super::Check;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the local backend.
pub(super) async fn local(config: &Config) -> Check {
    const NAME: &str = "local backend";
    let shell = LocalOptions::default().shell;
    if !shell.is_file() {
        return Check::problem(NAME, "there is neither /bin/bash nor /bin/sh", "install bash");
    }
    if !std::path::Path::new("/proc/self/fd").is_dir() {
        return Check::problem(NAME, "/proc is not mounted", "mount /proc: it is needed to start commands");
    }
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH);
    match openat2(AT_FDCWD, ".", how) {
        // The kernel supports the call, even if this directory is not accessible.
        Ok(_) | Err(Errno::ENOENT | Errno::EACCES) => {}
        Err(errno) => {
            return Check::problem(
                NAME,
                format!("file tools cannot be confined to their workspace (openat2: {})", errno.desc()),
                "use Linux 5.6 or later, and a container runtime that permits openat2",
            );
        }
    }
    let backend = LocalBackend::new(LocalOptions {
        grace: config.worker.kill_grace,
        hardening: remuda_node::hardening(config),
        readable: config.sandbox.readable.clone(),
        ..LocalOptions::default()
    });
    let features = backend.describe().await;
    let found = format!("{}; {}", shell.display(), describe_features(&features));
    let lacking = |state: FeatureState| features.iter().any(|feature| feature.state == state);
    let incomplete = lacking(FeatureState::Unavailable) || lacking(FeatureState::Partial);
    match config.sandbox.hardening {
        Hardening::Required if incomplete => Check::problem(
            NAME,
            found,
            "install bubblewrap 0.7 or later and allow user namespaces, or offer only the backend docker",
        ),
        Hardening::None | Hardening::Auto if incomplete => {
            Check::warning(NAME, found, "install bubblewrap 0.7 or later and allow user namespaces")
        }
        Hardening::None if nix::unistd::geteuid().is_root() => {
            Check::warning(NAME, found, "run workers as a user of their own, or set sandbox.hardening")
        }
        Hardening::None | Hardening::Auto | Hardening::Required => Check::ok(NAME, found),
    }
}

/// Lists the enforced features by name, and the others with their consequences.
fn describe_features(features: &[Feature]) -> String {
    let with_state = |state| features.iter().filter(move |feature| feature.state == state);
    let names: Vec<&str> = with_state(FeatureState::Enforced).map(|feature| feature.name).collect();
    let mut parts = vec![format!("enforced: {}", names.join(", "))];
    let with_detail =
        |state: &str, feature: &Feature| format!("{} {state} ({})", feature.name, feature.detail);
    // The doctor runs without the guard process of a worker, which is fine.
    parts.extend(
        with_state(FeatureState::Off).filter(|it| it.name != "guard").map(|it| with_detail("off", it)),
    );
    parts.extend(with_state(FeatureState::Partial).map(|it| with_detail("partial", it)));
    parts.extend(with_state(FeatureState::Unavailable).map(|it| with_detail("unavailable", it)));
    parts.join("; ")
}

/// Checks the Docker engine. The local backend works without it, so a missing engine is only a warning.
pub(super) async fn docker(config: &Config) -> Check {
    const NAME: &str = "Docker";
    let fix =
        "to run tools in containers, start Docker and give this user access to its socket (docker.host)";
    let options = DockerOptions::new(remuda_node::docker_host(config), "doctor", WorkerId::new());
    let backend = DockerBackend::new(options);
    match timeout(TIMEOUT, backend.describe()).await {
        Ok(features)
            if features.iter().any(|it| it.name == "engine" && it.state == FeatureState::Enforced) =>
        {
            let engine = features.iter().find(|it| it.name == "engine").map(|it| it.detail.as_str());
            Check::ok(NAME, format!("{}; {}", engine.unwrap_or_default(), describe_features(&features)))
        }
        Ok(features) => Check::warning(
            NAME,
            format!("the Docker engine does not answer: {}", describe_features(&features)),
            fix,
        ),
        Err(_) => Check::warning(
            NAME,
            format!("the Docker engine did not answer within {} s", TIMEOUT.as_secs()),
            fix,
        ),
    }
}
