//! A private engine of one test, which can be stopped and restarted.

use std::{fs::File, path::PathBuf, process::Stdio, time::Duration};

use nix::sys::signal::Signal;
use remuda_testkit::{Child, find_program, wait_until};
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(40);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Daemon {
    // Dropped in this order: the engine stops before its directory is removed.
    child: Option<Child>,
    directory: TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("remuda-docker-").tempdir().unwrap();
        let mut daemon = Self { child: None, directory };
        daemon.restart();
        daemon
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn restart(&mut self) {
        let dockerd = find_program("dockerd")
            .expect("dockerd is missing: install docker.io, as `cargo xtask test` does");
        let (path, host, socket) = (self.directory.path(), self.host(), self.socket());
        let log = File::options().create(true).append(true).open(path.join("log")).unwrap();
        let child = Child::start(&dockerd, None, |command| {
            command.args(["--host", &host, "--bridge=none", "--iptables=false"]);
            command.arg("--data-root").arg(path.join("data"));
            command.arg("--exec-root").arg(path.join("exec"));
            command.arg("--pidfile").arg(path.join("pid"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        });
        self.child = Some(child.expect("only root can start an engine"));
        let answers = || std::os::unix::net::UnixStream::connect(&socket).ok();
        let log = || std::fs::read_to_string(path.join("log")).unwrap_or_default();
        assert!(wait_until(START_TIMEOUT, answers).is_some(), "dockerd did not start: {}", log());
    }

    /// Stops it gracefully, so that it unmounts its file systems.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let stopped = child.signal(Signal::SIGTERM).and_then(|()| child.wait_timeout(STOP_TIMEOUT));
        if let Err(error) = stopped {
            eprintln!("cannot stop dockerd: {error:#}");
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("docker.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}
