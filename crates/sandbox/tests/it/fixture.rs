//! Test fixture: a sandbox over a temporary workspace, and the processes of its commands.

use std::{any::Any, path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{Code, Epoch, Result, SessionId, TenantId, WorkerId, execution::ExecutionPolicy};
use remuda_sandbox::{Backend, Command, ExecResult, NoOutput, Sandbox, SandboxRequest};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Environment variable that marks the processes of a fixture, in any container and of any user.
pub(crate) const MARK: &str = "BENCH_MARK";

pub(crate) struct SandboxFixture {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    /// The workspace is its subdirectory `workspace`; everything else in it is out of bounds.
    pub(crate) outside: TempDir,
    pub(crate) mark: String,
    /// Dependencies of the sandbox, dropped after it.
    dependencies: Option<Box<dyn Any + Send>>,
}

impl SandboxFixture {
    pub(crate) async fn new(backend: &dyn Backend) -> Self {
        Self::with(backend, ExecutionPolicy::default()).await
    }

    pub(crate) async fn with(backend: &dyn Backend, policy: ExecutionPolicy) -> Self {
        let outside = TempDir::new().unwrap();
        let request = request(outside.path().join("workspace"), policy);
        Self::over(backend.acquire(&request).await.unwrap(), outside)
    }

    /// For backends that need more setup.
    pub(crate) fn over(sandbox: Arc<dyn Sandbox>, outside: TempDir) -> Self {
        Self { sandbox, outside, mark: SessionId::new().to_string(), dependencies: None }
    }

    pub(crate) fn with_dependencies(mut self, dependencies: impl Any + Send) -> Self {
        self.dependencies = Some(Box::new(dependencies));
        self
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.outside.path().join("workspace")
    }

    pub(crate) async fn shell(&self, script: &str) -> ExecResult {
        self.exec(Command::shell(script, LONG)).await.unwrap()
    }

    pub(crate) async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.sandbox.exec(self.marked(command), &NoOutput, &CancellationToken::new()).await
    }

    /// Marks a command, so that [`alive`](Self::alive) finds its processes.
    pub(crate) fn marked(&self, mut command: Command) -> Command {
        command.env.push((MARK.to_owned(), self.mark.clone()));
        command
    }

    pub(crate) fn alive(&self) -> Vec<i32> {
        marked_processes(&self.mark)
    }

    pub(crate) fn assert_nothing_runs(&self) {
        let alive = self.alive();
        assert!(alive.is_empty(), "{alive:?}");
    }

    /// Waits until a command has written a file. Returns its contents.
    pub(crate) async fn wait_for_file(&self, file: &str) -> String {
        let path = self.workspace().join(file);
        wait_for(|| std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))).await;
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

pub(crate) fn request(workspace_root: impl Into<PathBuf>, policy: ExecutionPolicy) -> SandboxRequest {
    SandboxRequest {
        tenant: TenantId::new(),
        session: SessionId::new(),
        epoch: Epoch::default(),
        worker: WorkerId::new(),
        workspace_root: workspace_root.into(),
        policy,
    }
}

/// Living processes with this mark, by their ids on the host.
pub(crate) fn marked_processes(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| {
        // The environment of a zombie is empty.
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    })
    .collect()
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.unwrap_err().code()
}

pub(crate) async fn wait_for(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "condition not met in time");
        sleep(Duration::from_millis(5)).await;
    }
}
