//! Commands and how they end.

use std::time::Duration;

use remuda_domain::error::{Code, Error, Result};

use crate::{capture::Captured, path};

/// What is kept of each stream unless the command says otherwise.
pub const DEFAULT_OUTPUT_LIMIT: usize = 256 * 1024;
/// The longest script or single argument. Linux takes 128 KiB including what we add.
pub const MAX_ARGUMENT_BYTES: usize = 127 * 1024;
/// The most input. It is held in memory until the command reads it.
pub const MAX_STDIN_BYTES: usize = 4 * 1024 * 1024;

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub program: Program,
    /// Where to run, as a path in the workspace; the workspace itself if `None`.
    pub cwd: Option<String>,
    /// Set in addition to what the backend allows.
    pub env: Vec<(String, String)>,
    /// What the command reads; nothing if `None`.
    pub stdin: Option<Vec<u8>>,
    pub timeout: Duration,
    /// Bytes kept of each stream: the first half and the last half of it.
    pub output_limit: usize,
    /// Where to put output beyond that limit.
    pub spill: Option<Spill>,
}

/// A place in the workspace for output that is too much to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// A directory of the workspace, made when needed, for the files `stdout` and `stderr`.
    pub directory: String,
    /// Of each file. What comes after it is only counted.
    pub max_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A script for the sandbox's shell: `bash` where there is one.
    Shell(String),
    /// A program, looked up in `PATH`, and its arguments.
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

    /// Refuses what no backend could run. Backends call it first.
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

/// How a command ended and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecResult {
    pub status: ExecStatus,
    pub stdout: Captured,
    pub stderr: Captured,
    pub duration: Duration,
    pub usage: Usage,
}

/// What a command and everything it waited for used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub max_memory_bytes: u64,
    /// Processes that outlived the command and were killed.
    pub left_behind: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecStatus {
    Exited(i32),
    /// Ended by a signal that did not come from us.
    Signalled(i32),
    /// Killed by the kernel for want of memory.
    OutOfMemory,
    TimedOut,
    Cancelled,
}
