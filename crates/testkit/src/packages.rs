//! Finds programs and installs missing ones.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Uid;

use crate::{
    child_process::{find_program, report},
    postgres::postgres_program,
};

/// While this file exists, Debian packages do not start their services.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";

/// The installed nats-server.
pub fn nats_server() -> Result<PathBuf> {
    require("nats-server", &["nats-server"], || find_program("nats-server"))
}

/// The newest installed PostgreSQL.
pub fn postgres() -> Result<PathBuf> {
    require("postgres", &["postgresql"], || postgres_program("postgres").ok())
}

/// A statically linked busybox, from which images are made.
pub fn busybox() -> Result<PathBuf> {
    require("busybox", &["busybox-static"], || find_program("busybox"))
}

/// Finds a program, or installs `packages` and finds it then.
pub fn require(program: &str, packages: &[&str], find: impl Fn() -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = find() {
        return Ok(path);
    }
    install(packages).with_context(|| format!("{program} not found"))?;
    find().with_context(|| format!("{program} not found after installing {}", packages.join(", ")))
}

/// Installs packages of the distribution.
pub fn install(packages: &[&str]) -> Result<()> {
    static UPDATED: OnceLock<bool> = OnceLock::new();
    let apt = find_program("apt-get").with_context(|| format!("install {}", packages.join(", ")))?;
    if !Uid::effective().is_root() {
        bail!("install {} (as root, this is done for you)", packages.join(", "));
    }
    report(&format!("installing {}", packages.join(", ")));
    if !UPDATED.get_or_init(|| apt_get(&apt, &["update"]).is_ok()) {
        report("warning: apt-get update failed; trying to install all the same");
    }
    let _policy = StartPolicy::set()?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&apt, &arguments)
}

fn apt_get(apt: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new(apt)
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "apt-get {} failed: {}", arguments.join(" "), errors.trim());
    Ok(())
}

/// Prevents services from being started by their packages; keeps an existing policy.
struct StartPolicy {
    ours: bool,
}

impl StartPolicy {
    fn set() -> Result<Self> {
        let path = Path::new(START_POLICY);
        if path.try_exists()? {
            return Ok(Self { ours: false });
        }
        fs::write(path, "#!/bin/sh\nexit 101\n").context("cannot set the start policy")?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { ours: true })
    }
}

impl Drop for StartPolicy {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(START_POLICY)
        {
            report(&format!("warning: cannot remove {START_POLICY}: {error}"));
        }
    }
}

/// The first line that a program prints for `--version`.
pub fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().map_or_else(|| "version unknown".to_owned(), |line| line.trim().to_owned())
}
