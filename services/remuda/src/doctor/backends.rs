//! Where tools execute: what each backend can promise on this machine.

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

const PATIENCE: Duration = Duration::from_secs(5);

/// What the local backend enforces here.
pub(super) async fn local(config: &Config) -> Check {
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
    let backend = LocalBackend::new(LocalOptions {
        grace: config.worker.kill_grace,
        hardening: remuda_node::hardening(config),
        ..LocalOptions::default()
    });
    let features = backend.describe().await;
    let found = format!("{}; {}", shell.display(), in_words(&features));
    let unconfined = features.iter().any(|feature| feature.state == FeatureState::Unavailable);
    match config.sandbox.hardening {
        Hardening::Required if unconfined => Check::problem(
            NAME,
            found,
            "install bubblewrap, or use a kernel with Landlock, or set sandbox.hardening",
        ),
        Hardening::Auto if unconfined => {
            Check::warning(NAME, found, "install bubblewrap: commands are not confined")
        }
        Hardening::None | Hardening::Auto | Hardening::Required => Check::ok(NAME, found),
    }
}

/// What is enforced, by name, and what is not, with what that means.
fn in_words(features: &[Feature]) -> String {
    let of = |state| features.iter().filter(move |feature| feature.state == state);
    let names: Vec<&str> = of(FeatureState::Enforced).map(|feature| feature.name).collect();
    let mut words = vec![format!("enforced: {}", names.join(", "))];
    let without = |word: &str, feature: &Feature| format!("{} {word} ({})", feature.name, feature.detail);
    // A doctor has no worker's guard, and none is needed.
    words.extend(of(FeatureState::Off).filter(|it| it.name != "guard").map(|it| without("off", it)));
    words.extend(of(FeatureState::Unavailable).map(|it| without("unavailable", it)));
    words.join("; ")
}

/// The Docker engine. The local backend works without, so its absence is no problem.
pub(super) async fn docker(config: &Config) -> Check {
    const NAME: &str = "Docker";
    let mend =
        "start Docker and let this user reach its socket (docker.host), if tools should run in containers";
    let options = DockerOptions::new(remuda_node::docker_host(config), "doctor", WorkerId::new());
    let backend = DockerBackend::new(options);
    match timeout(PATIENCE, backend.describe()).await {
        Ok(features)
            if features.iter().any(|it| it.name == "engine" && it.state == FeatureState::Enforced) =>
        {
            let engine = features.iter().find(|it| it.name == "engine").map(|it| it.detail.as_str());
            Check::ok(NAME, format!("{}; {}", engine.unwrap_or_default(), in_words(&features)))
        }
        Ok(features) => Check::warning(NAME, format!("no engine answers: {}", in_words(&features)), mend),
        Err(_) => Check::warning(NAME, format!("no engine answered within {} s", PATIENCE.as_secs()), mend),
    }
}
