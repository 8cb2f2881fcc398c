//! Child processes that do not outlive this one.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{self, Command, ExitStatus},
    sync::{LazyLock, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::wait::wait_until;

/// Directories of server programs that are not in the PATH of an ordinary user on Debian.
const MORE_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// How long a process may take to end after SIGKILL (a full disk can delay it).
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds a program in PATH or in the directories of server programs.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(MORE_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// A child process that is killed when this handle is dropped or this process dies.
#[derive(Debug)]
pub struct Child {
    inner: process::Child,
    name: String,
}

impl Child {
    /// Starts `program`, configured by `configure`, as `user` if given.
    ///
    /// `setpriv` asks the kernel to kill the child when its parent dies, as this crate may not use `pre_exec`. It
    /// replaces itself with the program, so the process id is that of the program.
    pub fn start(program: &Path, user: Option<&str>, configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let setpriv = find_program("setpriv").context("setpriv not found; install util-linux")?;
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL"]);
        if let Some(user) = user {
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
        }
        command.arg("--").arg(program);
        configure(&mut command);
        let name = program.display().to_string();
        let inner = spawn(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { inner, name })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.inner.try_wait().ok().flatten()
    }

    /// Sends a signal; does nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.pid()).context("process id out of range")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Waits until the process has ended.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<ExitStatus> {
        wait_until(timeout, || self.ended())
            .ok_or_else(|| anyhow!("{} still runs after {timeout:?}", self.name))
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait_timeout(KILL_TIMEOUT).map(drop)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            report(&format!("{error:#}"));
        }
    }
}

/// Prints to stderr, because `Drop` cannot return an error.
pub(crate) fn report(message: &str) {
    #[expect(clippy::print_stderr, reason = "a test helper without a log")]
    {
        eprintln!("remuda-testkit: {message}");
    }
}

type Request = (Command, mpsc::Sender<io::Result<process::Child>>);

/// Starts the child from a thread that lives as long as the process: the kernel sends the parent-death signal when the
/// *thread* that started the child ends, and test threads end with their test.
fn spawn(command: Command) -> Result<process::Child> {
    static SPAWNER: LazyLock<io::Result<mpsc::Sender<Request>>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::Builder::new().name("testkit-spawner".to_owned()).spawn(move || {
            for (mut command, reply) in requests {
                // If the receiver is gone, kill the child: dropping the result would leave it running.
                if let Err(mpsc::SendError(Ok(mut child))) = reply.send(command.spawn()) {
                    child.kill().and_then(|()| child.wait()).ok();
                }
            }
        })?;
        Ok(sender)
    });
    let spawner = SPAWNER.as_ref().map_err(|error| anyhow!("cannot start the spawner thread: {error}"))?;
    let (reply, child) = mpsc::channel();
    spawner.send((command, reply)).map_err(|_| anyhow!("the spawner thread is gone"))?;
    Ok(child.recv().context("the spawner thread is gone")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_outlive_the_starting_thread_but_not_their_handle() {
        let sleep = find_program("sleep").unwrap();
        let mut child = thread::spawn(move || {
            Child::start(&sleep, None, |command| {
                command.arg("60");
            })
        })
        .join()
        .unwrap()
        .unwrap();
        assert!(child.wait_timeout(Duration::from_millis(200)).is_err(), "it should still run");
        let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap());
        drop(child);
        assert!(kill(pid, None).is_err(), "it should be gone");
    }
}
