//! The embedded server as a process of its own.

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

/// How long a start may take. It replays what the last life left.
const START: Duration = Duration::from_secs(60);
/// How long an orderly end may take.
const STOP: Duration = Duration::from_secs(60);

/// `remuda dev` on a fixed port, in one life after the other.
pub(crate) struct Server {
    program: PathBuf,
    directory: PathBuf,
    /// More settings, as `REMUDA_<SECTION>__<KEY>` and a value.
    settings: Vec<(String, String)>,
    port: u16,
    life: u32,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn new(
        program: PathBuf,
        directory: &Path,
        settings: Vec<(String, String)>,
    ) -> anyhow::Result<Self> {
        let port = stable_port().context("no free port")?;
        Ok(Self { program, directory: directory.to_owned(), settings, port, life: 0, child: None })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn addresses(&self) -> Addresses {
        let endpoint = format!("http://{}", self.address());
        Addresses { control_planes: vec![endpoint.clone()], streams: vec![endpoint], api_key: None }
    }

    /// The id of its process, while there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    fn log(&self, life: u32, name: &str) -> PathBuf {
        self.directory.join(format!("life-{life}.{name}"))
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.life += 1;
        let output = |name: &str| File::create(self.log(self.life, name));
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

    /// Waits until this life serves.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let ready = async {
            loop {
                let said = fs::read_to_string(self.log(self.life, "stdout")).unwrap_or_default();
                if said.contains("\"ready\"") {
                    return Ok(());
                }
                self.ensure_alive()?;
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(START, ready).await.with_context(|| format!("the server is not ready after {START:?}"))?
    }

    /// An end that nobody asked for is a fault of the server.
    fn ensure_alive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.as_mut().and_then(Child::ended) else { return Ok(()) };
        let words = fs::read_to_string(self.log(self.life, "stderr")).unwrap_or_default();
        let last: Vec<&str> = words.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        anyhow::bail!("the server ended by itself in life {} ({status}):\n{}", self.life, last.join("\n"))
    }

    /// Where it keeps everything, while nothing else is said.
    pub(crate) fn database(&self) -> PathBuf {
        self.directory.join("data/remuda.db")
    }

    /// SIGKILL. Returns when the process is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.end(Signal::SIGKILL).await
    }

    /// SIGTERM. Returns when the process is gone. One that takes too long is killed with its handle.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        match timeout(STOP, self.end(Signal::SIGTERM)).await {
            Ok(ended) => ended,
            Err(_) => anyhow::bail!("the server did not stop within {STOP:?}"),
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

    /// Panics, in any life.
    pub(crate) fn troubles(&mut self) -> anyhow::Result<Vec<String>> {
        self.ensure_alive()?;
        let mut troubles = Vec::new();
        for life in 1..=self.life {
            let words = fs::read_to_string(self.log(life, "stderr"))?;
            let panics = words.lines().filter(|line| line.contains("panicked"));
            troubles.extend(panics.map(|line| format!("life {life} of the server: {line}")));
        }
        Ok(troubles)
    }
}
