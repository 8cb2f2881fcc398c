//! One `remuda` process of the cluster and its links.

mod launch;

use std::{
    fmt,
    net::SocketAddr,
    ops::Deref,
    process::ExitStatus,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use remuda_testkit::{Child, Process, TcpProxy, process, processes_of};
use tokio::time::{Instant, sleep};

pub(crate) use self::launch::Launch;
use self::launch::is_ready;
use crate::wait::wait_until;

const START_PAUSE: Duration = Duration::from_millis(200);
/// How long a process may take to vanish after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a process of the cluster is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    ControlPlane,
    Worker,
    Stream,
}

impl Role {
    /// As the command that starts it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
            Self::Stream => "stream",
        }
    }
}

/// One place in the cluster: the same name, address and links over all lives of its process.
#[derive(Debug)]
pub struct Member {
    name: String,
    address: Option<SocketAddr>,
    /// Its link to PostgreSQL.
    pub postgres: TcpProxy,
    /// Its link to NATS.
    pub nats: TcpProxy,
    launch: Launch,
    life: Mutex<Life>,
    /// A fault is playing with it.
    taken: AtomicBool,
}

#[derive(Debug, Default)]
struct Life {
    child: Option<Child>,
    /// Its end is no surprise, however late it comes.
    told: bool,
    /// How the last process ended, unless another is there.
    last_end: Option<ExitStatus>,
    /// The end that nobody ordered, of each process that had one.
    unexpected: Vec<ExitStatus>,
}

impl Life {
    /// Looks whether the process has ended, and takes note.
    fn look(&mut self) {
        if let Some(status) = self.child.as_mut().and_then(Child::ended) {
            self.child = None;
            self.last_end = Some(status);
            if !self.told {
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
        let (life, taken) = (Mutex::default(), AtomicBool::new(false));
        Self { name, address, postgres, nats, launch, life, taken }
    }

    /// Such as `worker-1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it serves, which stays the same over restarts; workers do not.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The id of its process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let mut life = self.life();
        life.look();
        life.child.as_ref().map(Child::pid)
    }

    /// What its tools are at this moment: all living descendants but the guard and the supervisors, some of which wait for
    /// a command in advance.
    #[must_use]
    pub fn tools(&self) -> Vec<Process> {
        let Some(pid) = self.pid() else { return Vec::new() };
        let guard = format!("{} guard", self.launch.program().display());
        let is_tool =
            |process: &Process| process.cmdline != guard && !process.cmdline.ends_with(" supervise");
        processes_of(pid).into_iter().filter(is_tool).collect()
    }

    /// The process and everything that it started.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let Some(pid) = self.pid() else { return Vec::new() };
        process(pid).into_iter().chain(processes_of(pid)).collect()
    }

    /// Starts its process, with more variables in its environment, and waits until it serves. A process that gives up because
    /// a service is away is started again for a while.
    pub(crate) async fn start_with(&self, variables: &[(String, String)]) -> Result<()> {
        let deadline = Instant::now() + self.launch.patience();
        loop {
            let process = self.launch.spawn(variables)?;
            let said = process.stdout;
            {
                let mut life = self.life();
                life.look();
                life.child = Some(process.child);
                life.last_end = None;
                // One that gives up while it starts is not at fault: a service may be away.
                life.told = true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let started = wait_until(left, || {
                let mut life = self.life();
                if is_ready(&said) {
                    life.told = false;
                    return Some(Ok(()));
                }
                life.look();
                life.last_end.map(Err)
            })
            .await;
            let problem = match started {
                Some(Ok(())) => return Ok(()),
                Some(Err(status)) if Instant::now() < deadline => {
                    tracing::debug!(name = self.name, %status, "a process gave up while it started");
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
        let mut life = self.life();
        life.look();
        life.child.as_mut().map_or(Ok(()), |child| child.signal(signal))
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.end(Signal::SIGKILL, KILL_TIMEOUT)
            .await?
            .map(drop)
            .with_context(|| format!("{} outlives SIGKILL", self.name))
    }

    /// Sends a signal and waits for the end that it asks for, which is then no surprise. `Ok(None)` when the process does not end
    /// in time; one that had ended before gives its status too.
    pub(crate) async fn end(&self, signal: Signal, patience: Duration) -> Result<Option<ExitStatus>> {
        {
            let mut life = self.life();
            life.look();
            let Some(child) = &mut life.child else { return Ok(life.last_end) };
            child.signal(signal)?;
            life.told = true;
        }
        Ok(wait_until(patience, || {
            let mut life = self.life();
            life.look();
            life.last_end
        })
        .await)
    }

    /// How processes of this member ended that nobody had told to.
    pub(crate) fn unexpected_ends(&self) -> Vec<ExitStatus> {
        let mut life = self.life();
        life.look();
        life.unexpected.clone()
    }

    /// What its processes have said so far.
    pub(crate) fn log(&self) -> String {
        self.launch.log()
    }

    /// Kills without a runtime.
    pub(crate) fn kill_now(&self) -> Result<()> {
        self.life().child.take().map_or(Ok(()), |mut child| child.kill())
    }

    /// Keeps other faults from this member.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let free = self.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // Lazily: a handle that is made and dropped would set it free.
        free.then(|| Taken(self))
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member that one fault has for itself.
pub(crate) struct Taken<'a>(&'a Member);

impl Deref for Taken<'_> {
    type Target = Member;

    fn deref(&self) -> &Member {
        self.0
    }
}

impl fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Taken({})", self.0.name)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterOptions;

    #[tokio::test]
    async fn a_member_is_taken_by_one_fault_at_a_time() {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let proxy = async || TcpProxy::start(nowhere).await.unwrap();
        let options = ClusterOptions::new("remuda".into(), "nats-server".into());
        let launch = Launch::new(&options, Vec::new(), Vec::new(), "/".into(), "/dev/null".into());
        let member = Member::new("worker-0".to_owned(), None, proxy().await, proxy().await, launch);
        let first = member.take().unwrap();
        // Asking in vain must not set it free.
        assert!(member.take().is_none());
        assert!(member.take().is_none());
        drop(first);
        assert!(member.take().is_some());
    }
}
