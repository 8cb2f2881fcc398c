//! Process group of a supervisor. No process of it outlives its handle.

use std::{io, time::Duration};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tokio::{
    process::Child,
    runtime::Handle,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    guard::Registration,
    process_groups::{abandon, kill_groups},
};

/// How long a supervisor may take to kill everything after its stdin was closed.
const END_TIME: Duration = Duration::from_secs(4);
/// How long to poll whether killed processes are gone. They are immediately, unless stuck in the kernel.
const KILL_TIME: Duration = Duration::from_secs(1);

/// A running supervisor, the leader of its own process group.
///
/// The supervisor kills the command's processes, including those that left the group. Only if it fails, the
/// group is killed from here. Dropping this value therefore leaves some cleanup to a background task.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    leader: Option<GroupLeader>,
    tasks: TaskTracker,
}

impl ProcessGroup {
    pub(super) fn new(child: Child, tasks: TaskTracker) -> io::Result<Self> {
        let id = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .ok_or_else(|| io::Error::other("no process id"))?;
        let leader = GroupLeader { child, id: Pid::from_raw(id), ended: false, registration: None };
        Ok(Self { leader: Some(leader), tasks })
    }

    pub(super) fn id(&self) -> Option<Pid> {
        self.leader.as_ref().map(|leader| leader.id)
    }

    /// Whether the supervisor is alive.
    pub(super) fn is_running(&mut self) -> bool {
        self.leader.as_mut().is_some_and(|leader| matches!(leader.child.try_wait(), Ok(None)))
    }

    pub(super) fn set_registration(&mut self, registration: Registration) {
        if let Some(leader) = &mut self.leader {
            leader.registration = Some(registration);
        }
    }

    /// Sends SIGCONT, so that a supervisor that its command has stopped reads its messages.
    pub(super) fn send_sigcont(&self) {
        if let Some(leader) = &self.leader {
            let _ignored = kill(leader.id, Signal::SIGCONT);
        }
    }

    /// Waits for the exit of a supervisor that has reported the end, or whose stdin was closed.
    pub(super) async fn end(mut self) {
        if let Some(leader) = self.leader.take() {
            leader.end().await;
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let Some(leader) = self.leader.take() else { return };
        abandon(leader.id);
        // Without a runtime, or during its shutdown, dropping the member kills synchronously, which takes a
        // moment.
        if let Ok(runtime) = Handle::try_current() {
            self.tasks.spawn_on(leader.end(), &runtime);
        }
    }
}

#[derive(Debug)]
struct GroupLeader {
    child: Child,
    id: Pid,
    ended: bool,
    /// Declared last: the group is unregistered from the guard only after `drop` has killed it.
    registration: Option<Registration>,
}

impl GroupLeader {
    async fn end(mut self) {
        match timeout(END_TIME, self.child.wait()).await {
            // It exited by itself, as the last process of its group.
            Ok(Ok(status)) if status.code().is_some() => self.ended = true,
            _ => self.clear().await,
        }
    }

    /// Kills the rest of the group, including the supervisor, and polls until they are gone.
    async fn clear(&mut self) {
        let (mut delay, deadline) = (Duration::from_millis(1), Instant::now() + KILL_TIME);
        while self.kill() {
            if let Err(error) = self.child.try_wait() {
                tracing::warn!(%error, group = %self.id, "cannot reap a supervisor");
            }
            if Instant::now() >= deadline {
                tracing::warn!(group = %self.id, "killed processes of a tool are still there");
                break;
            }
            sleep(delay).await;
            delay *= 2;
        }
        self.ended = true;
    }

    /// Returns whether the group still has processes. Zombies count until their parent reaps them.
    fn kill(&self) -> bool {
        match killpg(self.id, Signal::SIGKILL) {
            Ok(()) => true,
            Err(Errno::ESRCH) => false,
            Err(errno) => {
                tracing::warn!(%errno, group = %self.id, "cannot kill a tool's processes");
                false
            }
        }
    }
}

impl Drop for GroupLeader {
    fn drop(&mut self) {
        if !self.ended {
            kill_groups([self.id.as_raw()]);
        }
    }
}
