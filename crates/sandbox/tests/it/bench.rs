//! A sandbox over a temporary workspace, and ways to look at processes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{Code, Epoch, Result, SessionId, TenantId};
use remuda_sandbox::{Backend, Command, ExecResult, NoOutput, Sandbox, SandboxRequest};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Bench {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    /// The workspace is `workspace` in here; what is beside it is out of bounds.
    pub(crate) outside: TempDir,
}

impl Bench {
    pub(crate) async fn new(backend: &dyn Backend) -> Self {
        let outside = TempDir::new().unwrap();
        let request = SandboxRequest {
            tenant: TenantId::new(),
            session: SessionId::new(),
            epoch: Epoch::default(),
            workspace_root: outside.path().join("workspace"),
        };
        Self { sandbox: backend.acquire(&request).await.unwrap(), outside }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.outside.path().join("workspace")
    }

    pub(crate) async fn shell(&self, script: &str) -> ExecResult {
        self.exec(Command::shell(script, LONG)).await.unwrap()
    }

    pub(crate) async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.sandbox.exec(command, &NoOutput, &CancellationToken::new()).await
    }

    /// The number that a command wrote to a file.
    pub(crate) async fn number(&self, file: &str) -> i32 {
        let path = self.workspace().join(file);
        wait_for(|| std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))).await;
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.unwrap_err().code()
}

pub(crate) async fn wait_for(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process of the group runs. Zombies do not: they wait for a parent that is not ours.
pub(crate) fn group_alive(group: i32) -> bool {
    processes().any(|(_, state, of)| of == group && state != 'Z')
}

pub(crate) fn process_alive(process: i32) -> bool {
    processes().any(|(id, state, _)| id == process && state != 'Z')
}

fn processes() -> impl Iterator<Item = (i32, char, i32)> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some((id, state, fields.nth(1)?.parse().ok()?))
    })
}
