//! Starts supervisors for one sandbox, one of them in advance.
//!
//! Starting a supervisor takes about as long as starting a shell. So while a command runs, a spare supervisor
//! for the next one is started. It waits without any knowledge of the command and exits by itself if it is
//! not needed.

use std::{
    io,
    process::Stdio,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::FromSupervisor;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Host, hardening::CommandConfinement, pipes::SupervisorPipes, process_group::ProcessGroup};
use crate::{files::HostFiles, supervised_command::SupervisorConnection};

/// How long a supervisor may take to start; on a busy machine it takes a fraction of a second.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of start attempts, and the pause after the first one.
const MAX_START_ATTEMPTS: u32 = 3;
const START_PAUSE: Duration = Duration::from_millis(100);
/// How long an unused spare is kept. By itself it exits after a minute.
const SPARE_LIFETIME: Duration = Duration::from_secs(30);
/// Spares per worker. Beyond that, a session starts its supervisors on demand.
pub(super) const MAX_SPARES: usize = 64;

/// Starts the supervisors of one sandbox.
#[derive(Debug)]
pub(super) struct SupervisorStarter {
    pub(super) host: Arc<Host>,
    pub(super) files: HostFiles,
    pub(super) confinement: CommandConfinement,
    spare: Mutex<SpareSupervisor>,
}

#[derive(Debug, Default)]
enum SpareSupervisor {
    #[default]
    None,
    Starting,
    Ready {
        pipes: Box<SupervisorPipes>,
        /// Dropping it ends the task that waits for the spare's expiry.
        _expiry_task: DropGuard,
    },
}

impl SupervisorStarter {
    pub(super) fn new(host: Arc<Host>, files: HostFiles, confinement: CommandConfinement) -> Arc<Self> {
        Arc::new(Self { host, files, confinement, spare: Mutex::default() })
    }

    /// Returns a supervisor that waits for its command in that directory.
    pub(super) async fn supervisor(&self, cwd: Option<&str>) -> Result<SupervisorPipes> {
        // A spare's working directory is the workspace itself.
        match cwd.map_or_else(|| self.take_spare(), |_| None) {
            Some(spare) => Ok(spare),
            None => self.start(cwd).await,
        }
    }

    /// Starts a spare for the next command in the background, unless there is one.
    pub(super) fn start_spare(self: &Arc<Self>) {
        let Ok(permit) = Arc::clone(&self.host.spares).try_acquire_owned() else { return };
        {
            let mut spare = self.lock();
            if !matches!(*spare, SpareSupervisor::None) {
                return;
            }
            *spare = SpareSupervisor::Starting;
        }
        // Weak, because a dropped sandbox needs no spare.
        let (starter, stop) = (Arc::downgrade(self), self.host.stop.clone());
        self.host.tasks.spawn(async move {
            let _permit = permit;
            let Some(taken) = Self::store_spare(&starter).await else { return };
            tokio::select! {
                () = taken.cancelled() => return,
                () = stop.cancelled() => {}
                () = sleep(SPARE_LIFETIME) => {}
            }
            if let Some(starter) = starter.upgrade() {
                starter.take_spare();
            }
        });
    }

    /// Starts and stores a spare. The returned token is cancelled when the spare is taken or its sandbox is
    /// dropped.
    async fn store_spare(starter: &Weak<Self>) -> Option<CancellationToken> {
        let starter = starter.upgrade()?;
        let started = starter.start(None).await;
        let mut spare = starter.lock();
        match started {
            Ok(pipes) => {
                let taken = CancellationToken::new();
                *spare = SpareSupervisor::Ready {
                    pipes: Box::new(pipes),
                    _expiry_task: taken.clone().drop_guard(),
                };
                Some(taken)
            }
            // The next command starts its own supervisor and reports the error.
            Err(error) => {
                tracing::debug!(error = %error.chain(), "cannot start a spare supervisor");
                *spare = SpareSupervisor::None;
                None
            }
        }
    }

    fn take_spare(&self) -> Option<SupervisorPipes> {
        let mut spare = self.lock();
        match std::mem::take(&mut *spare) {
            SpareSupervisor::Ready { mut pipes, .. } => pipes.group.is_running().then_some(*pipes),
            other => {
                *spare = other;
                None
            }
        }
    }

    /// Starts a supervisor with retries. Retrying is safe: it has not received a command yet.
    async fn start(&self, cwd: Option<&str>) -> Result<SupervisorPipes> {
        let mut tries = 1;
        loop {
            match self.try_start(cwd).await {
                Err(error) if error.code() == Code::Unavailable && tries < MAX_START_ATTEMPTS => {
                    tracing::warn!(error = %error.chain(), tries, "supervisor start failed; retrying");
                    sleep(START_PAUSE * tries).await;
                    tries += 1;
                }
                started => return started,
            }
        }
    }

    async fn try_start(&self, cwd: Option<&str>) -> Result<SupervisorPipes> {
        let directory = self.files.root().directory(cwd.unwrap_or("."))?;
        let mut child = self
            .confinement
            .supervisor(&directory)?
            .arg("supervise")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(not_started)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let group = ProcessGroup::new(child, self.host.tasks.clone()).map_err(not_started)?;
        let (input, output) = pipes.ok_or_else(|| not_started(io::Error::other("no pipes")))?;
        let mut pipes = SupervisorPipes::new(group, input, output);
        let cause = match timeout(START_TIMEOUT, pipes.receive()).await {
            Ok(Ok(FromSupervisor::Ready)) => return Ok(pipes),
            Ok(Ok(_)) => io::Error::other("expected Ready as the first message"),
            Ok(Err(error)) => io::Error::other(error.chain()),
            Err(_) => io::Error::other(format!("no message within {START_TIMEOUT:?}")),
        };
        Err(Error::unavailable("the supervisor process did not start").with_source(cause))
    }

    fn lock(&self) -> MutexGuard<'_, SpareSupervisor> {
        self.spare.lock()
    }
}

fn not_started(error: io::Error) -> Error {
    Error::unavailable("the command cannot be started").with_source(error)
}
