//! The command line, environment and files of a member's process.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use remuda_testkit::Child;
use serde_json::Value;

use crate::options::ClusterOptions;

/// What all processes of a member have in common.
#[derive(Debug)]
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// The working directory of the process, without a configuration file.
    directory: PathBuf,
    /// The log file, shared by all processes of the member.
    log: PathBuf,
    /// How long a start is retried.
    timeout: Duration,
    starts: AtomicU32,
}

/// A started process that may not serve yet.
pub(super) struct Spawned {
    pub(super) child: Child,
    /// The file of its stdout, in which it reports to be ready.
    pub(super) stdout: PathBuf,
}

impl Launch {
    pub(crate) fn new(
        options: &ClusterOptions,
        arguments: Vec<String>,
        variables: Vec<(String, String)>,
        directory: PathBuf,
        log: PathBuf,
    ) -> Self {
        Self {
            program: options.remuda.clone(),
            arguments,
            variables,
            directory,
            log,
            timeout: options.start_timeout,
            starts: AtomicU32::new(0),
        }
    }

    pub(super) fn start_timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a process with these settings and without the environment of this process.
    pub(super) fn spawn(&self, more: &[(String, String)]) -> Result<Spawned> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed) + 1;
        let stdout = self.directory.join(format!("stdout-{number}"));
        let output = File::create(&stdout).with_context(|| format!("cannot create {}", stdout.display()))?;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot open {}", self.log.display()))?;
        let child = Child::start(&self.program, None, |command| {
            command.args(&self.arguments).arg("--json").current_dir(&self.directory).env_clear();
            command.env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", &self.directory);
            command.env("RUST_BACKTRACE", "1");
            command.envs(self.variables.iter().cloned()).envs(more.iter().cloned());
            command.stdin(Stdio::null()).stdout(output).stderr(log);
        })?;
        Ok(Spawned { child, stdout })
    }

    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

/// Whether the process has reported to be ready on its stdout.
pub(super) fn is_ready(stdout: &Path) -> bool {
    let text = fs::read_to_string(stdout).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .any(|line| line.get("ready").is_some())
}
