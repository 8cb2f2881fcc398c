//! Supervisors for one sandbox, one of them in advance.
//!
//! Starting a supervisor takes about as long as starting a shell. So while a command runs, the supervisor of the next one
//! is started: it waits, knows nothing yet, and ends by itself if it is not needed.

use std::{
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::FromSupervisor;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Host,
    group::Group,
    hardening::{Place, Walls},
    wire::Pipes,
};
use crate::{files::HostFiles, supervised::Wire};

/// How long a supervisor may take to begin; a busy machine takes a fraction of a second.
const START_TIME: Duration = Duration::from_secs(10);
/// How often that is tried, and the pause after the first time.
const START_TRIES: u32 = 3;
const START_PAUSE: Duration = Duration::from_millis(100);
/// How long one is kept that nobody needs. By itself it ends after a minute.
const SPARE_TIME: Duration = Duration::from_secs(30);
/// How many a worker keeps; a session that finds no room starts its supervisors when it needs them.
pub(super) const MAX_SPARES: usize = 64;

/// What it takes to start a supervisor.
#[derive(Debug)]
pub(super) struct Starter {
    pub(super) host: Arc<Host>,
    pub(super) files: HostFiles,
    pub(super) walls: Walls,
    /// Where the files really are.
    pub(super) workspace: PathBuf,
    pub(super) network: bool,
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
enum Spare {
    #[default]
    None,
    Starting,
    Ready {
        pipes: Box<Pipes>,
        /// Dropping it ends the wait for the spare one's time to be over.
        _waiting: DropGuard,
    },
}

impl Starter {
    pub(super) fn new(
        host: Arc<Host>,
        files: HostFiles,
        walls: Walls,
        workspace: PathBuf,
        network: bool,
    ) -> Arc<Self> {
        Arc::new(Self { host, files, walls, workspace, network, spare: Mutex::default() })
    }

    /// A supervisor that waits for its command in that directory.
    pub(super) async fn supervisor(&self, cwd: Option<&str>) -> Result<Pipes> {
        // A spare one is in the workspace itself.
        match cwd.map_or_else(|| self.take_spare(), |_| None) {
            Some(spare) => Ok(spare),
            None => self.start(cwd).await,
        }
    }

    /// Starts one for the next command, in the background, unless there is one.
    pub(super) fn prepare(self: &Arc<Self>) {
        let Ok(permit) = Arc::clone(&self.host.spares).try_acquire_owned() else { return };
        {
            let mut spare = self.lock();
            if !matches!(*spare, Spare::None) {
                return;
            }
            *spare = Spare::Starting;
        }
        // A sandbox that is gone needs no spare.
        let (starter, stop) = (Arc::downgrade(self), self.host.stop.clone());
        self.host.tasks.spawn(async move {
            let _permit = permit;
            let Some(taken) = Self::put_spare(&starter).await else { return };
            tokio::select! {
                () = taken.cancelled() => return,
                () = stop.cancelled() => {}
                () = sleep(SPARE_TIME) => {}
            }
            if let Some(starter) = starter.upgrade() {
                starter.take_spare();
            }
        });
    }

    /// Gives what is cancelled when the spare one is taken, or goes with its sandbox.
    async fn put_spare(starter: &Weak<Self>) -> Option<CancellationToken> {
        let starter = starter.upgrade()?;
        let started = starter.start(None).await;
        let mut spare = starter.lock();
        match started {
            Ok(pipes) => {
                let taken = CancellationToken::new();
                *spare = Spare::Ready { pipes: Box::new(pipes), _waiting: taken.clone().drop_guard() };
                Some(taken)
            }
            // Whoever needs one finds out why.
            Err(error) => {
                tracing::debug!(error = %error.chain(), "no supervisor could be started in advance");
                *spare = Spare::None;
                None
            }
        }
    }

    fn take_spare(&self) -> Option<Pipes> {
        let mut spare = self.lock();
        match std::mem::take(&mut *spare) {
            Spare::Ready { mut pipes, .. } => pipes.group.runs().then_some(*pipes),
            other => {
                *spare = other;
                None
            }
        }
    }

    /// Starts a supervisor, again if it does not begin: it was told nothing yet, so nothing can have happened.
    async fn start(&self, cwd: Option<&str>) -> Result<Pipes> {
        let mut tries = 1;
        loop {
            match self.try_start(cwd).await {
                Err(error) if error.code() == Code::Unavailable && tries < START_TRIES => {
                    tracing::warn!(error = %error.chain(), tries, "a supervisor is started again");
                    sleep(START_PAUSE * tries).await;
                    tries += 1;
                }
                started => return started,
            }
        }
    }

    async fn try_start(&self, cwd: Option<&str>) -> Result<Pipes> {
        let directory = self.files.root().directory(cwd.unwrap_or("."))?;
        let place = Place { workspace: &self.workspace, directory: &directory };
        let mut child = self
            .walls
            .supervisor(&place, self.network)?
            .arg("supervise")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(not_started)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let group = Group::new(child, self.host.tasks.clone()).map_err(not_started)?;
        let (input, output) = pipes.ok_or_else(|| not_started(io::Error::other("no pipes")))?;
        let mut pipes = Pipes::new(group, input, output);
        let cause = match timeout(START_TIME, pipes.receive()).await {
            Ok(Ok(FromSupervisor::Ready)) => return Ok(pipes),
            Ok(Ok(_)) => io::Error::other("it said something else first"),
            Ok(Err(error)) => io::Error::other(error.chain()),
            Err(_) => io::Error::other(format!("it said nothing for {START_TIME:?}")),
        };
        Err(Error::unavailable("the process that is to run the command does not begin").with_source(cause))
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_started(error: io::Error) -> Error {
    Error::unavailable("the command cannot be started").with_source(error)
}
