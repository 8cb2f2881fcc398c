//! A Docker engine: a running one, or a private one.

use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{sys::signal::Signal, unistd::Uid};
use tempfile::TempDir;

use crate::{
    child_process::{Child, find_program, report},
    packages,
    wait::wait_until,
};

const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
const START_TIMEOUT: Duration = Duration::from_secs(40);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A running engine. A private one is stopped when this is dropped.
#[derive(Debug)]
pub struct DockerEngine {
    pub host: String,
    pub version: String,
    pub private: bool,
    // Dropped in this order: the daemon ends before its directory is removed.
    _daemon: Option<Daemon>,
}

#[derive(Debug)]
struct Daemon {
    child: Child,
    _directory: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gracefully, so that it unmounts its file systems; the handle kills it if it does not end.
        let stopped = self.child.signal(Signal::SIGTERM).and_then(|()| self.child.wait_timeout(STOP_TIMEOUT));
        if let Err(error) = stopped {
            report(&format!("warning: cannot stop dockerd: {error:#}"));
        }
    }
}

impl DockerEngine {
    /// Finds a running engine or starts a private one.
    pub fn find_or_start() -> Result<Self> {
        let host =
            env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()).unwrap_or(DEFAULT_HOST.to_owned());
        match version(&host) {
            Some(version) => Ok(Self { host, version, private: false, _daemon: None }),
            None => start(),
        }
    }
}

/// The version of the engine at this address, if one answers.
fn version(host: &str) -> Option<String> {
    let Some(socket) = host.strip_prefix("unix://") else {
        let output = Command::new(find_program("docker")?)
            .args(["--host", host, "version", "--format", "{{.Server.Version}}"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        return output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    };
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(VERSION_TIMEOUT)).ok()?;
    stream.write_all(b"GET /version HTTP/1.0\r\nHost: docker\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    // The first version in the response may be that of a component; the engine's is the last one before the API version.
    let (_, rest) = response.split_once("\"ApiVersion\"")?;
    let before = &response[..response.len() - rest.len()];
    let (_, version) = before.rsplit_once("\"Version\":\"")?;
    Some(version.split('"').next()?.to_owned())
}

fn start() -> Result<DockerEngine> {
    let dockerd = packages::require("dockerd", &["docker.io"], || find_program("dockerd"))?;
    if !Uid::effective().is_root() {
        bail!("no Docker engine answers, and only root can start one");
    }
    let directory = tempfile::Builder::new().prefix("remuda-docker-").tempdir()?;
    let path = directory.path();
    let log = path.join("log");
    let errors = fs::File::create(&log)?;
    let host = format!("unix://{}", path.join("docker.sock").display());
    let child = Child::start(&dockerd, None, |command| {
        command.args(["--host", &host, "--bridge=none", "--iptables=false"]);
        command.arg("--data-root").arg(path.join("data"));
        command.arg("--exec-root").arg(path.join("exec"));
        command.arg("--pidfile").arg(path.join("pid"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    })?;
    let mut daemon = Daemon { child, _directory: directory };
    let response = wait_until(START_TIMEOUT, || match version(&host) {
        Some(version) => Some(Some(version)),
        None => daemon.child.ended().map(|_| None),
    });
    let version =
        response.flatten().with_context(|| format!("dockerd did not start: {}", last_lines(&log)))?;
    Ok(DockerEngine { host, version, private: true, _daemon: Some(daemon) })
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}
