//! A private nats-server with JetStream.

use std::{
    env, fs,
    io::Read,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    child::{Child, find_program},
    wait::wait_until,
};

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Someone else may have been given the port between the death of a server and its restart.
const RESTART_ATTEMPTS: usize = 5;

/// The nats-server binaries to test with: those in `REMUDA_TEST_NATS_SERVERS`, separated by colons, else the installed one.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn nats_binaries() -> Vec<PathBuf> {
    let binaries: Vec<PathBuf> = match env::var_os("REMUDA_TEST_NATS_SERVERS") {
        Some(paths) => env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => find_program("nats-server").into_iter().collect(),
    };
    assert!(!binaries.is_empty(), "no nats-server found; run `cargo xtask test`");
    binaries
}

/// A nats-server on a port of its own. It keeps port and store over [`NatsServer::restart`].
#[derive(Debug)]
pub struct NatsServer {
    binary: PathBuf,
    directory: TempDir,
    port: u16,
    child: Child,
}

impl NatsServer {
    /// Starts a server and waits until it accepts connections.
    pub fn start(binary: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("remuda-nats-")
            .tempdir()
            .context("cannot make a directory for nats-server")?;
        let (child, port) = launch(binary, directory.path(), None)?;
        Ok(Self { binary: binary.to_owned(), directory, port, child })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where JetStream keeps its files.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }

    /// Starts the server again on the same port and store, after killing it if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let mut last = None;
        for _ in 0..RESTART_ATTEMPTS {
            match launch(&self.binary, self.directory.path(), Some(self.port)) {
                Ok((child, _)) => {
                    self.child = child;
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        bail!("nats-server did not restart on port {}: {:#}", self.port, last.context("never tried")?)
    }

    /// Starts the server again on the same port with an empty store.
    pub fn wipe_and_restart(&mut self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.store()).context("cannot wipe the store")?;
        self.restart()
    }
}

/// Starts a server on the given port or one of its own choice, and gives the port.
fn launch(binary: &Path, directory: &Path, port: Option<u16>) -> Result<(Child, u16)> {
    let log = fs::File::create(directory.join("log")).context("cannot create the server's log")?;
    let mut child = Child::start(binary, None, |command| {
        command.args([
            "-a",
            "127.0.0.1",
            "-p",
            &port.map_or_else(|| "-1".to_owned(), |port| port.to_string()),
        ]);
        command.args(["-js", "-sd"]).arg(directory.join("store"));
        command.arg("--ports_file_dir").arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    })?;
    let ports_file = directory.join(format!(
        "{}_{}.ports",
        binary.file_name().unwrap_or_default().to_string_lossy(),
        child.pid()
    ));
    let ready = wait_until(START_TIMEOUT, || {
        if child.ended().is_some() {
            return Some(None);
        }
        let port = parse_port(&fs::read_to_string(&ports_file).ok()?)?;
        greets(port).then_some(Some(port))
    });
    match ready.flatten() {
        Some(port) => Ok((child, port)),
        None => bail!(
            "{} did not start: {}",
            binary.display(),
            fs::read_to_string(directory.join("log")).unwrap_or_default().trim()
        ),
    }
}

/// Reads the client port from `{"nats":["nats://127.0.0.1:4222"]}`.
fn parse_port(ports: &str) -> Option<u16> {
    let (_, rest) = ports.split_once("\"nats://127.0.0.1:")?;
    rest.split('"').next()?.parse().ok()
}

/// Whether a NATS server answers there: it speaks first, with its INFO line.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut greeting = [0; 5];
    stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && stream.read_exact(&mut greeting).is_ok()
        && &greeting == b"INFO "
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_port_and_store_over_restarts() {
        for binary in nats_binaries() {
            let mut server = NatsServer::start(&binary).unwrap();
            let (url, pid) = (server.url(), server.pid());
            assert!(greets(server.port));
            fs::create_dir_all(server.store().join("kept")).unwrap();
            server.kill().unwrap();
            assert!(!greets(server.port));
            server.restart().unwrap();
            assert_eq!(server.url(), url);
            assert_ne!(server.pid(), pid);
            assert!(server.store().join("kept").is_dir());
            server.wipe_and_restart().unwrap();
            assert!(!server.store().join("kept").is_dir());
        }
    }
}
