//! A private nats-server with JetStream.

use std::{
    env, fs,
    io::{Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    child_process::{Child, find_program},
    ports::stable_port,
    wait::wait_until,
};

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Log lines that an error includes.
const LOG_TAIL_LINES: usize = 5;
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The file with the configuration, in the server's directory.
const CONFIG: &str = "nats-server.conf";
/// Another process may take the port before the server binds it.
const START_ATTEMPTS: usize = 5;

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

/// A nats-server on its own port. It keeps its port and store over [`NatsServer::restart`].
#[derive(Debug)]
pub struct NatsServer {
    binary: PathBuf,
    directory: PathBuf,
    port: u16,
    child: Child,
    // Dropped after the child, which writes into it.
    _own_directory: Option<TempDir>,
}

impl NatsServer {
    /// Starts a server with a temporary directory and waits until it accepts connections.
    pub fn start(binary: &Path) -> Result<Self> {
        let directory = temporary()?;
        let server = Self::start_in(binary, directory.path())?;
        Ok(Self { _own_directory: Some(directory), ..server })
    }

    /// Starts a server with more configuration: accounts, TLS.
    pub fn start_with(binary: &Path, config: &str) -> Result<Self> {
        let directory = temporary()?;
        let server = Self::start_in_with(binary, directory.path(), config)?;
        Ok(Self { _own_directory: Some(directory), ..server })
    }

    /// Starts a server that keeps its store and its log in `directory`.
    pub fn start_in(binary: &Path, directory: &Path) -> Result<Self> {
        Self::start_in_with(binary, directory, "")
    }

    /// Like [`start_in`](Self::start_in), with more configuration: accounts, TLS.
    pub fn start_in_with(binary: &Path, directory: &Path, config: &str) -> Result<Self> {
        write_config(directory, config)?;
        Self::start_configured(binary, directory)
    }

    fn start_configured(binary: &Path, directory: &Path) -> Result<Self> {
        let mut last = None;
        for _ in 0..START_ATTEMPTS {
            let port = stable_port()?;
            match launch(binary, directory, port) {
                Ok(child) => {
                    let (binary, directory) = (binary.to_owned(), directory.to_owned());
                    return Ok(Self { binary, directory, port, child, _own_directory: None });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("nats-server was never started")?)
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where JetStream keeps its files.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }

    /// Stops the server with SIGTERM and waits until it has ended.
    pub fn stop(&mut self) -> Result<()> {
        self.child.signal(Signal::SIGTERM)?;
        self.child.wait_timeout(STOP_TIMEOUT).map(drop)
    }

    /// Starts the server again on the same port and store, after killing it if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let mut last = None;
        for _ in 0..START_ATTEMPTS {
            match launch(&self.binary, &self.directory, self.port) {
                Ok(child) => {
                    self.child = child;
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        bail!("nats-server did not restart on port {}: {:#}", self.port, last.context("never tried")?)
    }

    /// Kills the server and deletes its store.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.store()).context("cannot wipe the store")
    }

    /// Starts the server again on the same port with an empty store.
    pub fn wipe_and_restart(&mut self) -> Result<()> {
        self.wipe()?;
        self.restart()
    }
}

fn temporary() -> Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("remuda-nats-").tempdir();
    directory.context("cannot make a directory for nats-server")
}

/// Writes the configuration that [`launch`] reads. It may contain passwords.
fn write_config(directory: &Path, config: &str) -> Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(directory.join(CONFIG))
        .context("cannot write the server's configuration")?;
    file.write_all(config.as_bytes()).context("cannot write the server's configuration")
}

/// Starts a server and waits until it answers. Its log is appended to that of earlier starts.
fn launch(binary: &Path, directory: &Path, port: u16) -> Result<Child> {
    let log = directory.join("log");
    let output = fs::File::options().create(true).append(true).open(&log);
    let output = output.context("cannot open the server's log")?;
    let mut child = Child::start(binary, None, |command| {
        command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
        command.arg("-c").arg(directory.join(CONFIG));
        command.args(["-js", "-sd"]).arg(directory.join("store"));
        command.arg("--ports_file_dir").arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    })?;
    // The server writes this file once it listens; another process on the port does not.
    let ports_file = directory.join(format!(
        "{}_{}.ports",
        binary.file_name().unwrap_or_default().to_string_lossy(),
        child.pid()
    ));
    let ready = wait_until(START_TIMEOUT, || {
        if child.ended().is_some() {
            return Some(false);
        }
        let listens = parse_port(&fs::read_to_string(&ports_file).ok()?)? == port;
        (listens && sends_info(port)).then_some(true)
    });
    if ready == Some(true) {
        return Ok(child);
    }
    let text = fs::read_to_string(&log).unwrap_or_default();
    let tail: Vec<&str> = text.lines().rev().take(LOG_TAIL_LINES).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    bail!("{} did not start: {}", binary.display(), tail.join(" / "))
}

/// Reads the client port from `{"nats":["nats://127.0.0.1:4222"]}`. With TLS the scheme is `tls`.
fn parse_port(ports: &str) -> Option<u16> {
    let (_, rest) = ports.split_once("\"nats\":")?.1.split_once("://127.0.0.1:")?;
    rest.split('"').next()?.parse().ok()
}

/// Whether a NATS server answers: it sends its INFO line first.
fn sends_info(port: u16) -> bool {
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
    fn server_keeps_its_port_and_store_over_restarts() {
        for binary in nats_binaries() {
            let mut server = NatsServer::start(&binary).unwrap();
            let (url, pid) = (server.url(), server.pid());
            assert!(sends_info(server.port));
            fs::create_dir_all(server.store().join("kept")).unwrap();
            server.kill().unwrap();
            assert!(!sends_info(server.port));
            server.restart().unwrap();
            assert_eq!(server.url(), url);
            assert_ne!(server.pid(), pid);
            assert!(server.store().join("kept").is_dir());
            server.stop().unwrap();
            assert!(!sends_info(server.port));
            server.wipe_and_restart().unwrap();
            assert!(!server.store().join("kept").is_dir());
        }
    }
}
