//! A command's supervisor and the processes that it leads: none of them outlives its handle.

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
    groups::{abandon, kill_groups},
    guard::Registration,
};

/// How long a supervisor may take to kill everything once its input has ended.
const END_TIME: Duration = Duration::from_secs(4);
/// How long to look whether killed processes are gone. They are at once, unless stuck in the kernel.
const GONE_TIME: Duration = Duration::from_secs(1);

/// A running supervisor, the leader of its own process group.
///
/// It kills what the command started, also what left the group; only if it cannot, the group is killed from here. So
/// dropping this leaves a little to be done in the background.
#[derive(Debug)]
pub(super) struct Group {
    member: Option<Member>,
    tasks: TaskTracker,
}

impl Group {
    pub(super) fn new(child: Child, tasks: TaskTracker) -> io::Result<Self> {
        let id = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .ok_or_else(|| io::Error::other("no process id"))?;
        let member = Member { child, id: Pid::from_raw(id), ended: false, registration: None };
        Ok(Self { member: Some(member), tasks })
    }

    pub(super) fn id(&self) -> Option<Pid> {
        self.member.as_ref().map(|member| member.id)
    }

    /// Whether the supervisor is still there.
    pub(super) fn runs(&mut self) -> bool {
        self.member.as_mut().is_some_and(|member| matches!(member.child.try_wait(), Ok(None)))
    }

    pub(super) fn guarded_by(&mut self, registration: Registration) {
        if let Some(member) = &mut self.member {
            member.registration = Some(registration);
        }
    }

    /// Lets a supervisor that the command has stopped hear what it is told.
    pub(super) fn wake(&self) {
        if let Some(member) = &self.member {
            let _gone = kill(member.id, Signal::SIGCONT);
        }
    }

    /// Waits for the end of a supervisor that has said its last, or whose input has ended.
    pub(super) async fn end(mut self) {
        if let Some(member) = self.member.take() {
            member.end().await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(member) = self.member.take() else { return };
        abandon(member.id);
        // Without a runtime, or when it is shut down, dropping the member kills, which takes a moment.
        if let Ok(runtime) = Handle::try_current() {
            self.tasks.spawn_on(member.end(), &runtime);
        }
    }
}

#[derive(Debug)]
struct Member {
    child: Child,
    id: Pid,
    ended: bool,
    /// Declared last: the guard forgets the group only after `drop` has killed it.
    registration: Option<Registration>,
}

impl Member {
    async fn end(mut self) {
        match timeout(END_TIME, self.child.wait()).await {
            // It is the last of its group.
            Ok(Ok(status)) if status.code().is_some() => self.ended = true,
            _ => self.clear().await,
        }
    }

    /// Kills whoever is left of the group, the supervisor too, and looks until they are gone.
    async fn clear(&mut self) {
        let (mut delay, deadline) = (Duration::from_millis(1), Instant::now() + GONE_TIME);
        while self.kill() {
            if let Err(error) = self.child.try_wait() {
                tracing::warn!(%error, group = %self.id, "cannot collect a supervisor");
            }
            if Instant::now() >= deadline {
                tracing::warn!(group = %self.id, "a tool's processes were killed but are not gone");
                break;
            }
            sleep(delay).await;
            delay *= 2;
        }
        self.ended = true;
    }

    /// Whether there was anyone to kill. The dead count until whoever inherited them collects them.
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

impl Drop for Member {
    fn drop(&mut self) {
        if !self.ended {
            kill_groups([self.id.as_raw()]);
        }
    }
}
