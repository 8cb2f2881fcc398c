//! Test fixture: the native tools over a temporary workspace.

use std::{path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{Code, Result, SessionId, TenantId, ToolCallId, WorkerId, execution::ExecutionPolicy};
use remuda_sandbox::{LazySandbox, LocalBackend, LocalOptions, NoOutput, SandboxRequest};
use remuda_tools::{BackgroundTasks, CallResult, Registry, ToolContext, ToolOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) struct ToolFixture {
    pub(crate) context: ToolContext,
    tools: Registry,
    directory: TempDir,
}

impl ToolFixture {
    pub(crate) fn new() -> Self {
        Self::with(&ToolOptions::default())
    }

    pub(crate) fn with(options: &ToolOptions) -> Self {
        let directory = TempDir::new().unwrap();
        let session = SessionId::new();
        let request = SandboxRequest {
            tenant: TenantId::new(),
            session,
            epoch: 1,
            worker: WorkerId::new(),
            workspace_root: directory.path().join("workspace"),
            policy: ExecutionPolicy::default(),
        };
        let backend = Arc::new(LocalBackend::new(LocalOptions::default()));
        let context = ToolContext {
            session,
            call: ToolCallId::new(),
            sandbox: Arc::new(LazySandbox::new(backend, request)),
            timeout: Duration::from_secs(20),
            cancel: CancellationToken::new(),
            output: Arc::new(NoOutput),
            background: Arc::new(BackgroundTasks::new(Instant::now() + Duration::from_secs(60))),
            trace: None,
        };
        Self { context, tools: Registry::native(options), directory }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<Value> {
        self.call_with_output(tool, arguments).await.map_err(|failure| failure.error)
    }

    /// Also returns the partial output of a failed call.
    pub(crate) async fn call_with_output(&self, tool: &str, arguments: Value) -> CallResult {
        self.tools.get(tool).unwrap().call(&arguments, &self.context).await
    }

    /// The pid that a command has written to a file of the workspace.
    pub(crate) async fn pid(&self, file: &str) -> u32 {
        let path = self.workspace().join(file);
        poll_until(|| std::fs::read_to_string(&path).ok()?.trim().parse().ok()).await
    }
}

/// Polls until the function returns a value.
pub(crate) async fn poll_until<T>(mut report: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = report() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for 30 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a process has ended.
pub(crate) async fn wait_until_gone(pid: u32) {
    poll_until(|| (!alive(pid)).then_some(())).await;
}

/// Whether a process is alive. Zombies do not count.
pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Code and field of a rejection, which `validate` and `call` must both give.
pub(crate) async fn rejection(tool: &str, arguments: Value) -> (Code, String) {
    let tools = Registry::native(&ToolOptions::default());
    let error = tools.get(tool).unwrap().validate(&arguments).unwrap_err();
    let called = ToolFixture::new().call(tool, arguments).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (called.code(), called.field()));
    (error.code(), error.field().unwrap_or_default().to_owned())
}
