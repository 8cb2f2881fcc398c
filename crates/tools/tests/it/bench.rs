//! Tools over a temporary workspace.

use std::{path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{Code, Result, SessionId, TenantId};
use remuda_sandbox::{LazySandbox, LocalBackend, LocalOptions, NoOutput, SandboxRequest};
use remuda_tools::{Registry, ToolContext};
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub(crate) struct Bench {
    pub(crate) context: ToolContext,
    directory: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let request = SandboxRequest {
            tenant: TenantId::new(),
            session: SessionId::new(),
            epoch: 1,
            workspace_root: directory.path().join("workspace"),
        };
        let backend = Arc::new(LocalBackend::new(LocalOptions::default()));
        let context = ToolContext {
            sandbox: Arc::new(LazySandbox::new(backend, request)),
            timeout: Duration::from_secs(20),
            cancel: CancellationToken::new(),
            output: Arc::new(NoOutput),
        };
        Self { context, directory }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<Value> {
        Registry::native().get(tool).unwrap().call(&arguments, &self.context).await
    }
}

/// The code and the field of a refusal, which both `validate` and `call` must give.
pub(crate) async fn refused(tool: &str, arguments: Value) -> (Code, String) {
    let error = Registry::native().get(tool).unwrap().validate(&arguments).unwrap_err();
    let called = Bench::new().call(tool, arguments).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (called.code(), called.field()));
    (error.code(), error.field().unwrap_or_default().to_owned())
}
