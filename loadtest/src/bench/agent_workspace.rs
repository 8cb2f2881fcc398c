//! A workspace whose agent has a scripted model. A run has five steps: three model calls and two reads of a file in between.

use std::{fs, os::unix::fs::PermissionsExt as _};

use anyhow::Context as _;
use remuda_client::{Client, ClientOptions};
use remuda_proto::v1;
use tempfile::TempDir;

use crate::workload::Addresses;

const NAME: &str = "bench";
const FILES: [(&str, &str); 4] = [
    (
        ".openharness/agents/reader.md",
        "---\nmodel: workspace/rehearsed\ntools: { native: ['*'] }\n---\nYou read.\n",
    ),
    (".openharness/settings.yaml", "default_agent: reader\n"),
    (".openharness/models/rehearsed.yaml", "rehearsed: { provider: scripted, name: ../play.yaml }\n"),
    (
        ".openharness/play.yaml",
        "turns:\n  - { when: { turn: 1 }, call: [{ tool: Read, arguments: { file_path: notes.txt } }] }\n  \
         - { when: { turn: 2 }, call: [{ tool: Read, arguments: { file_path: notes.txt } }] }\notherwise: { say: done }\n",
    ),
];

/// A temporary directory that is registered as a workspace. It is removed when this is dropped.
pub(super) struct AgentWorkspace {
    _directory: TempDir,
}

impl AgentWorkspace {
    pub(super) async fn register(addresses: &Addresses) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-bench-").tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        for (path, text) in FILES.into_iter().chain([("notes.txt", "One line.\n")]) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().context("file has no parent directory")?)?;
            fs::write(path, text)?;
        }
        let operator = addresses.operator.as_ref();
        let client = Client::connect(ClientOptions {
            endpoint: addresses.control_planes.first().context("no control plane")?.clone(),
            api_key: operator.map(|operator| operator.key.clone().into()),
            ..ClientOptions::default()
        })?;
        let root = directory.path().to_str().context("directory path is not UTF-8")?.to_owned();
        let tenant = operator.map(|operator| operator.tenant.clone()).unwrap_or_default();
        client.create_workspace(v1::CreateWorkspaceRequest { name: NAME.to_owned(), root, tenant }).await?;
        Ok(Self { _directory: directory })
    }

    /// The request for a session that uses this workspace.
    pub(super) fn session_request() -> v1::CreateSessionRequest {
        v1::CreateSessionRequest { workspace: NAME.to_owned(), ..v1::CreateSessionRequest::default() }
    }
}
