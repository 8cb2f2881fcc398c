//! Commands and their results.

use std::time::Duration;

use remuda_domain::error::{Code, Error, Result};

use crate::{output_capture::CapturedOutput, path};

/// Default for the bytes captured of each stream.
pub const DEFAULT_OUTPUT_LIMIT: usize = 256 * 1024;
/// The longest script or argument. Linux allows 128 KiB, including the bytes added here.
pub const MAX_ARGUMENT_BYTES: usize = 127 * 1024;
/// The most stdin. It is held in memory until the command reads it.
pub const MAX_STDIN_BYTES: usize = 4 * 1024 * 1024;

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub program: Program,
    /// Working directory, as a path in the workspace; the workspace itself if `None`.
    pub cwd: Option<String>,
    /// Variables in addition to those that the backend allows.
    pub env: Vec<(String, String)>,
    /// The command's stdin; empty if `None`.
    pub stdin: Option<Vec<u8>>,
    pub timeout: Duration,
    /// Bytes captured of each stream: the first half and the last half.
    pub output_limit: usize,
    /// Where to store output that exceeds `output_limit`.
    pub spill: Option<Spill>,
}

/// Spill directory for output that exceeds the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// A directory of the workspace for the files `stdout` and `stderr`, created when needed.
    pub directory: String,
    /// Limit per file. Output beyond it is only counted.
    pub max_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A script for the sandbox's shell: `bash` if it exists.
    Shell(String),
    /// A program (looked up in `PATH`) and its arguments.
    Argv(Vec<String>),
}

impl Command {
    #[must_use]
    pub fn shell(script: impl Into<String>, timeout: Duration) -> Self {
        Self::new(Program::Shell(script.into()), timeout)
    }

    #[must_use]
    pub fn argv(argv: Vec<String>, timeout: Duration) -> Self {
        Self::new(Program::Argv(argv), timeout)
    }

    fn new(program: Program, timeout: Duration) -> Self {
        Self {
            program,
            cwd: None,
            env: Vec::new(),
            stdin: None,
            timeout,
            output_limit: DEFAULT_OUTPUT_LIMIT,
            spill: None,
        }
    }

    /// Rejects commands that no backend can run. Backends call it first.
    pub fn check(&self) -> Result<()> {
        match &self.program {
            Program::Shell(script) => check_script("command", script)?,
            Program::Argv(argv) => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(Error::invalid("command", "expected a program"));
                }
                for argument in argv {
                    check_argument("command", argument)?;
                }
            }
        }
        if let Some(cwd) = &self.cwd {
            path::check("cwd", cwd)?;
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Error::invalid("env", "expected a name without = and NUL"));
            }
            check_argument("env", value)?;
        }
        if let Some(stdin) = &self.stdin
            && stdin.len() > MAX_STDIN_BYTES
        {
            let message = format!("{} bytes, at most {MAX_STDIN_BYTES} are allowed", stdin.len());
            return Err(Error::new(Code::TooLarge, message).at("stdin"));
        }
        Ok(())
    }
}

/// Checks a shell script: not blank, no NUL, not too long.
pub fn check_script(field: &str, script: &str) -> Result<()> {
    if script.trim().is_empty() {
        return Err(Error::invalid(field, "expected a command"));
    }
    check_argument(field, script)
}

fn check_argument(field: &str, argument: &str) -> Result<()> {
    if argument.contains('\0') {
        return Err(Error::invalid(field, "expected no NUL character"));
    }
    if argument.len() > MAX_ARGUMENT_BYTES {
        let message = format!("{} bytes, at most {MAX_ARGUMENT_BYTES} are allowed", argument.len());
        return Err(Error::new(Code::TooLarge, message).at(field));
    }
    Ok(())
}

/// Status, output and resource usage of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecResult {
    pub status: ExecStatus,
    pub stdout: CapturedOutput,
    pub stderr: CapturedOutput,
    pub duration: Duration,
    pub usage: Usage,
}

/// Resource usage of a command and of the children it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub max_memory_bytes: u64,
    /// Number of processes that outlived the command and were killed.
    pub left_behind: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecStatus {
    Exited(i32),
    /// Ended by a signal that the sandbox did not send.
    Signalled(i32),
    /// Killed by the kernel's OOM killer.
    OutOfMemory,
    /// Ended because it wrote until the workspace's file system had too little space left.
    DiskFull,
    TimedOut,
    Cancelled,
}
