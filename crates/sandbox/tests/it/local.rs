//! The local backend.

use std::sync::Arc;

use remuda_domain::{Code, Epoch, SessionId, TenantId};
use remuda_sandbox::{Backend, LazySandbox, LocalBackend, LocalOptions, SandboxRequest};

use crate::bench::{Bench, code};

async fn bench() -> Bench {
    Bench::new(&LocalBackend::new(LocalOptions::default())).await
}

crate::backend_suite!(crate::local::bench);

fn request(workspace_root: impl Into<std::path::PathBuf>) -> SandboxRequest {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    SandboxRequest { tenant, session, epoch: Epoch::default(), workspace_root: workspace_root.into() }
}

#[tokio::test]
async fn a_workspace_that_cannot_be_is_refused() {
    let backend = LocalBackend::new(LocalOptions::default());
    assert_eq!(code(backend.acquire(&request("relative")).await), Code::InvalidArgument);
    assert_eq!(code(backend.acquire(&request("/dev/null/beneath")).await), Code::Unavailable);
}

#[tokio::test]
async fn lazy_acquires_once_and_retries_failures() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("workspace");
    let lazy = LazySandbox::new(Arc::new(LocalBackend::new(LocalOptions::default())), request(&root));
    assert!(!root.try_exists().unwrap());

    std::fs::write(&root, "in the way").unwrap();
    assert_eq!(code(lazy.get().await), Code::Unavailable);
    std::fs::remove_file(&root).unwrap();
    let (first, second) = (lazy.get().await.unwrap(), lazy.get().await.unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert!(root.is_dir());
}
