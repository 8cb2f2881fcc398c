//! A command's process group: nothing of it outlives its handle.

use std::{io, process::ExitStatus, time::Duration};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{process::Child, time::Instant};

use crate::guard::Registration;

/// How long to look whether killed processes are gone. They are at once, unless stuck in the kernel.
const GONE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running child that leads its own process group. Dropping it kills the group.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    id: Pid,
    gone: bool,
    /// Declared last: the guard forgets the group only after `drop` has killed it.
    registration: Option<Registration>,
}

impl Group {
    /// `child` must have been started with `process_group(0)`.
    pub(super) fn new(child: Child) -> io::Result<Self> {
        let id = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .ok_or_else(|| io::Error::other("no process id"))?;
        Ok(Self { child, id: Pid::from_raw(id), gone: false, registration: None })
    }

    pub(super) fn id(&self) -> Pid {
        self.id
    }

    pub(super) fn guarded_by(&mut self, registration: Registration) {
        self.registration = Some(registration);
    }

    /// Waits for the leader's end. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Kills whoever is left, the leader too, and looks until they are gone.
    pub(super) async fn clear(&mut self) {
        let mut delay = Duration::from_millis(1);
        let deadline = Instant::now() + GONE_TIMEOUT;
        while self.signal(Signal::SIGKILL) {
            // Collects the leader, if it was still there.
            if let Err(error) = self.child.try_wait() {
                tracing::warn!(%error, group = %self.id, "cannot collect a tool process");
            }
            // The dead can still be signalled until their parent, who is not us, collects them.
            let id = self.id;
            if !tokio::task::spawn_blocking(move || any_runs(id)).await.unwrap_or(true) {
                break;
            }
            if Instant::now() >= deadline {
                tracing::warn!(group = %self.id, "a tool's processes were killed but are not gone");
                break;
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
        self.gone = true;
        self.registration = None;
    }

    /// Whether there was anyone to signal.
    fn signal(&self, signal: Signal) -> bool {
        match killpg(self.id, signal) {
            Ok(()) => true,
            Err(Errno::ESRCH) => false,
            Err(errno) => {
                tracing::warn!(%errno, group = %self.id, "cannot signal a tool's processes");
                false
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// Whether a process of the group is there and not dead.
fn any_runs(group: Pid) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    entries.flatten().any(|entry| {
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        // Its name, in parentheses, may hold anything; what follows is: state, parent, group.
        is_process
            && std::fs::read_to_string(entry.path().join("stat")).is_ok_and(|stat| {
                let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
                let dead = matches!(fields.next(), Some("Z" | "X"));
                !dead && fields.nth(1).and_then(|field| field.parse().ok()) == Some(group.as_raw())
            })
    })
}
