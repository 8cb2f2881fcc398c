//! A workspace whose agent has a rehearsed model: it asks, reads a file, asks, reads it again, and answers. Five steps.

use std::{fs, os::unix::fs::PermissionsExt as _};

use anyhow::Context as _;
use remuda_client::{Client, ClientOptions};
use remuda_proto::v1;
use tempfile::TempDir;

use crate::workload::Addresses;

const NAME: &str = "bench";
const FILES: [(&str, &str); 4] = [
    (".openharness/agents/reader.md", "---\nmodel: workspace/rehearsed\n---\nYou read.\n"),
    (".openharness/settings.yaml", "default_agent: reader\n"),
    (".openharness/models/rehearsed.yaml", "rehearsed: { provider: scripted, name: ../play.yaml }\n"),
    (
        ".openharness/play.yaml",
        "turns:\n  - { when: { turn: 1 }, call: [{ tool: Read, arguments: { file_path: notes.txt } }] }\n  \
         - { when: { turn: 2 }, call: [{ tool: Read, arguments: { file_path: notes.txt } }] }\notherwise: { say: done }\n",
    ),
];

/// The directory, which is removed with this, registered as a workspace.
pub(super) struct Team {
    _directory: TempDir,
}

impl Team {
    pub(super) async fn gather(addresses: &Addresses) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-bench-").tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        for (path, text) in FILES.into_iter().chain([("notes.txt", "One line.\n")]) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().context("a file without a directory")?)?;
            fs::write(path, text)?;
        }
        let client = Client::connect(ClientOptions {
            endpoint: addresses.control_planes.first().context("there is no control plane")?.clone(),
            api_key: addresses.api_key.clone().map(Into::into),
            ..ClientOptions::default()
        })?;
        let root = directory.path().to_str().context("the directory has no name")?.to_owned();
        client.create_workspace(v1::CreateWorkspaceRequest { name: NAME.to_owned(), root }).await?;
        Ok(Self { _directory: directory })
    }

    /// How sessions are made that its agent leads.
    pub(super) fn session() -> v1::CreateSessionRequest {
        v1::CreateSessionRequest { workspace: NAME.to_owned(), ..v1::CreateSessionRequest::default() }
    }
}
