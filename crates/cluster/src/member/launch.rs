//! How a member's process is started.

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

/// Everything but what differs from one life to the next.
#[derive(Debug)]
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// The process's own place, where it finds no configuration file.
    directory: PathBuf,
    /// Where all lives write what they have to say.
    log: PathBuf,
    /// How long a start is tried again.
    patience: Duration,
    lives: AtomicU32,
}

/// A process that may not serve yet.
pub(super) struct Spawned {
    pub(super) child: Child,
    /// The file to which it says that it does.
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
            patience: options.start_patience,
            lives: AtomicU32::new(0),
        }
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a process with these settings and none of this process's own environment.
    pub(super) fn spawn(&self, more: &[(String, String)]) -> Result<Spawned> {
        let number = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
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

/// Whether the process that writes there has said that it serves.
pub(super) fn is_ready(stdout: &Path) -> bool {
    let said = fs::read_to_string(stdout).unwrap_or_default();
    said.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .any(|line| line.get("ready").is_some())
}
