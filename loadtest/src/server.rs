//! `remuda dev` as a child process.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use remuda_testkit::{Child, stable_port};
use tokio::time::{sleep, timeout};

use crate::workload::Addresses;

/// How long a start may take, including recovery from a crash.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a graceful stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// `remuda dev` on a fixed port, which it keeps over restarts.
pub(crate) struct Server {
    program: PathBuf,
    directory: PathBuf,
    /// More settings, as `REMUDA_<SECTION>__<KEY>` and a value.
    settings: Vec<(String, String)>,
    port: u16,
    starts: u32,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn new(
        program: PathBuf,
        directory: &Path,
        settings: Vec<(String, String)>,
    ) -> anyhow::Result<Self> {
        let port = stable_port().context("no free port")?;
        Ok(Self { program, directory: directory.to_owned(), settings, port, starts: 0, child: None })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn addresses(&self) -> Addresses {
        let endpoint = format!("http://{}", self.address());
        Addresses {
            control_planes: vec![endpoint.clone()],
            streams: vec![endpoint],
            api_key: None,
            operator: None,
        }
    }

    /// The id of its process, while there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    fn log(&self, start: u32, name: &str) -> PathBuf {
        self.directory.join(format!("start-{start}.{name}"))
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        let output = |name: &str| File::create(self.log(self.starts, name));
        let (stdout, stderr) = (output("stdout")?, output("stderr")?);
        let child = Child::start(&self.program, None, |command| {
            command.args(["dev", "--json", "--listen", &self.address().to_string(), "--data-dir"]);
            command.arg(self.directory.join("data")).env_clear();
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.env("HOME", &self.directory).env("REMUDA_TELEMETRY__LOG", "warn");
            command.envs(self.settings.iter().map(|(name, value)| (name, value)));
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        })?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the current process serves.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let ready = async {
            loop {
                let stdout = fs::read_to_string(self.log(self.starts, "stdout")).unwrap_or_default();
                if stdout.contains("\"ready\"") {
                    return Ok(());
                }
                self.ensure_alive()?;
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(START_TIMEOUT, ready)
            .await
            .with_context(|| format!("the server was not ready within {START_TIMEOUT:?}"))?
    }

    /// Fails if the process has ended unexpectedly.
    fn ensure_alive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.as_mut().and_then(Child::ended) else { return Ok(()) };
        let stderr = fs::read_to_string(self.log(self.starts, "stderr")).unwrap_or_default();
        let last: Vec<&str> = stderr.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        anyhow::bail!(
            "the server ended unexpectedly after start {} ({status}):\n{}",
            self.starts,
            last.join("\n")
        )
    }

    /// The path of its SQLite database.
    pub(crate) fn database(&self) -> PathBuf {
        self.directory.join("data/remuda.db")
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.end(Signal::SIGKILL).await
    }

    /// Sends SIGTERM and waits until the process is gone. A process that takes too long is killed with its handle.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        match timeout(STOP_TIMEOUT, self.end(Signal::SIGTERM)).await {
            Ok(ended) => ended,
            Err(_) => anyhow::bail!("the server did not stop within {STOP_TIMEOUT:?}"),
        }
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.ensure_alive()?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.signal(signal)?;
        while child.ended().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Panics logged by any of its processes.
    pub(crate) fn problems(&mut self) -> anyhow::Result<Vec<String>> {
        self.ensure_alive()?;
        let mut problems = Vec::new();
        for start in 1..=self.starts {
            let stderr = fs::read_to_string(self.log(start, "stderr"))?;
            let panics = stderr.lines().filter(|line| line.contains("panicked"));
            problems.extend(panics.map(|line| format!("start {start} of the server: {line}")));
        }
        Ok(problems)
    }
}
