//! A member of the cluster: one `remuda` process at a time, and its links.

mod launch;

use std::{
    fmt,
    net::SocketAddr,
    ops::Deref,
    process::ExitStatus,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use remuda_testkit::{Child, Process, TcpProxy, process, processes_of};
use remuda_transport::BusRole;
use tokio::time::{Instant, sleep};

pub(crate) use self::launch::Launch;
use self::launch::is_ready;
use crate::wait::wait_until;

const START_PAUSE: Duration = Duration::from_millis(200);
/// How long a process may take to end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    ControlPlane,
    Worker,
    Stream,
}

impl Role {
    pub(crate) fn on_the_bus(self) -> BusRole {
        match self {
            Self::ControlPlane => BusRole::ControlPlane,
            Self::Worker => BusRole::Worker,
            Self::Stream => BusRole::Stream,
        }
    }

    /// The subcommand that starts it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
            Self::Stream => "stream",
        }
    }
}

/// A member of the cluster. It keeps its name, address and links when its process is restarted.
#[derive(Debug)]
pub struct Member {
    name: String,
    address: Option<SocketAddr>,
    /// Its link to PostgreSQL.
    pub postgres: TcpProxy,
    /// Its link to NATS.
    pub nats: TcpProxy,
    launch: Launch,
    state: Mutex<ProcessState>,
    /// Whether a fault has reserved it.
    reserved: AtomicBool,
}

#[derive(Debug, Default)]
struct ProcessState {
    child: Option<Child>,
    /// The process was signalled or is starting, so its end is not unexpected.
    exit_expected: bool,
    /// The exit status of the last process, if none is running.
    last_end: Option<ExitStatus>,
    /// The exit statuses of processes that ended unexpectedly.
    unexpected: Vec<ExitStatus>,
}

impl ProcessState {
    /// Checks whether the process has ended, and records its exit status.
    fn poll(&mut self) {
        if let Some(status) = self.child.as_mut().and_then(Child::ended) {
            self.child = None;
            self.last_end = Some(status);
            if !self.exit_expected {
                self.unexpected.push(status);
            }
        }
    }
}

impl Member {
    pub(crate) fn new(
        name: String,
        address: Option<SocketAddr>,
        postgres: TcpProxy,
        nats: TcpProxy,
        launch: Launch,
    ) -> Self {
        let (state, reserved) = (Mutex::default(), AtomicBool::new(false));
        Self { name, address, postgres, nats, launch, state, reserved }
    }

    /// Such as `worker-1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address it listens on, which stays the same over restarts; `None` for workers.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The id of its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let mut state = self.state();
        state.poll();
        state.child.as_ref().map(Child::pid)
    }

    /// Its current tool processes: all living descendants except the guard and the supervisors, some of which are started in
    /// advance of a command.
    #[must_use]
    pub fn tools(&self) -> Vec<Process> {
        let Some(pid) = self.pid() else { return Vec::new() };
        let guard = format!("{} guard", self.launch.program().display());
        let is_tool =
            |process: &Process| process.cmdline != guard && !process.cmdline.ends_with(" supervise");
        processes_of(pid).into_iter().filter(is_tool).collect()
    }

    /// The process and all its descendants.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let Some(pid) = self.pid() else { return Vec::new() };
        process(pid).into_iter().chain(processes_of(pid)).collect()
    }

    /// Starts its process with more environment variables and waits until it serves. A process that ends because a service is
    /// down is started again until the timeout.
    pub(crate) async fn start_with(&self, variables: &[(String, String)]) -> Result<()> {
        let deadline = Instant::now() + self.launch.start_timeout();
        loop {
            let process = self.launch.spawn(variables)?;
            let stdout = process.stdout;
            {
                let mut state = self.state();
                state.poll();
                state.child = Some(process.child);
                state.last_end = None;
                // An end during startup is not unexpected: a service may be down.
                state.exit_expected = true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let started = wait_until(left, || {
                let mut state = self.state();
                if is_ready(&stdout) {
                    state.exit_expected = false;
                    return Some(Ok(()));
                }
                state.poll();
                state.last_end.map(Err)
            })
            .await;
            let problem = match started {
                Some(Ok(())) => return Ok(()),
                Some(Err(status)) if Instant::now() < deadline => {
                    tracing::debug!(name = self.name, %status, "process ended during startup; starting it again");
                    sleep(START_PAUSE).await;
                    continue;
                }
                Some(Err(status)) => format!("it ended with {status}"),
                None => "it is not ready".to_owned(),
            };
            let log = self.log();
            bail!("{} did not start: {problem}: {}", self.name, log.lines().last().unwrap_or_default());
        }
    }

    pub(crate) async fn start(&self) -> Result<()> {
        self.start_with(&[]).await
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let mut state = self.state();
        state.poll();
        state.child.as_mut().map_or(Ok(()), |child| child.signal(signal))
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.end(Signal::SIGKILL, KILL_TIMEOUT)
            .await?
            .map(drop)
            .with_context(|| format!("{} did not end after SIGKILL", self.name))
    }

    /// Sends a signal and waits for the end of the process, which is then expected. Returns `Ok(None)` if it does not end in time,
    /// and the last status if it had already ended.
    pub(crate) async fn end(&self, signal: Signal, timeout: Duration) -> Result<Option<ExitStatus>> {
        {
            let mut state = self.state();
            state.poll();
            let Some(child) = &mut state.child else { return Ok(state.last_end) };
            child.signal(signal)?;
            state.exit_expected = true;
        }
        Ok(wait_until(timeout, || {
            let mut state = self.state();
            state.poll();
            state.last_end
        })
        .await)
    }

    /// The exit statuses of processes of this member that ended unexpectedly.
    pub(crate) fn unexpected_ends(&self) -> Vec<ExitStatus> {
        let mut state = self.state();
        state.poll();
        state.unexpected.clone()
    }

    /// The log of all its processes so far.
    pub(crate) fn log(&self) -> String {
        self.launch.log()
    }

    /// Kills the process without a runtime.
    pub(crate) fn kill_now(&self) -> Result<()> {
        self.state().child.take().map_or(Ok(()), |mut child| child.kill())
    }

    /// Reserves this member for one fault; `None` if another fault has reserved it.
    pub(crate) fn try_reserve(&self) -> Option<MemberGuard<'_>> {
        let free = self.reserved.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // Lazily: dropping a guard that was created in vain would free the reservation.
        free.then(|| MemberGuard(self))
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock()
    }
}

/// A reserved member. Dropping it frees the reservation.
pub(crate) struct MemberGuard<'a>(&'a Member);

impl Deref for MemberGuard<'_> {
    type Target = Member;

    fn deref(&self) -> &Member {
        self.0
    }
}

impl fmt::Debug for MemberGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberGuard({})", self.0.name)
    }
}

impl Drop for MemberGuard<'_> {
    fn drop(&mut self) {
        self.0.reserved.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterOptions;

    #[tokio::test]
    async fn member_is_reserved_by_one_fault_at_a_time() {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let proxy = async || TcpProxy::start(nowhere).await.unwrap();
        let options = ClusterOptions::new("remuda".into(), "nats-server".into());
        let launch = Launch::new(&options, Vec::new(), Vec::new(), "/".into(), "/dev/null".into());
        let member = Member::new("worker-0".to_owned(), None, proxy().await, proxy().await, launch);
        let first = member.try_reserve().unwrap();
        // A failed attempt must not free the reservation.
        assert!(member.try_reserve().is_none());
        assert!(member.try_reserve().is_none());
        drop(first);
        assert!(member.try_reserve().is_some());
    }
}
