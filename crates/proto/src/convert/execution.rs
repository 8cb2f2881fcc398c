//! Conversions of execution settings and sandboxes.

use remuda_domain::{
    error::Result,
    execution::{BackendKind, ExecutionChoice, ExecutionSite, SandboxRecord, WorkspaceAccess},
};

use super::timestamp;
use crate::v1;

/// Converts the execution settings of a request. Errors name the field.
pub fn execution_choice(execution: Option<v1::Execution>) -> Result<ExecutionChoice> {
    let v1::Execution { backend, image, network, workspace_access } = execution.unwrap_or_default();
    let given = |text: String| (!text.is_empty()).then_some(text);
    Ok(ExecutionChoice {
        backend: given(backend).map(|name| BackendKind::parse("backend", &name)).transpose()?,
        image: given(image),
        network: given(network),
        workspace: given(workspace_access)
            .map(|name| WorkspaceAccess::parse("workspace_access", &name))
            .transpose()?,
    })
}

impl From<ExecutionChoice> for v1::Execution {
    fn from(choice: ExecutionChoice) -> Self {
        Self {
            backend: choice.backend.map(|kind| kind.as_str().to_owned()).unwrap_or_default(),
            image: choice.image.unwrap_or_default(),
            network: choice.network.unwrap_or_default(),
            workspace_access: choice.workspace.map(|it| it.as_str().to_owned()).unwrap_or_default(),
        }
    }
}

impl From<ExecutionSite> for v1::Place {
    fn from(site: ExecutionSite) -> Self {
        Self {
            backend: site.backend.as_str().to_owned(),
            sandbox_id: site.sandbox.to_string(),
            image: site.image,
            digest: site.digest,
        }
    }
}

/// A sandbox, and whether its worker is alive.
#[must_use]
pub fn sandbox(record: SandboxRecord, worker_alive: bool) -> v1::Sandbox {
    let of_holder = |text: fn(&remuda_domain::execution::Holder) -> String| {
        record.holder.as_ref().map(text).unwrap_or_default()
    };
    v1::Sandbox {
        id: record.id.to_string(),
        backend: record.backend.as_str().to_owned(),
        state: record.state.as_str().to_owned(),
        tenant_id: of_holder(|holder| holder.tenant.to_string()),
        session_id: of_holder(|holder| holder.session.to_string()),
        epoch: record.holder.map_or(0, |holder| holder.epoch),
        worker_id: record.worker.to_string(),
        worker_alive,
        handle: record.handle.unwrap_or_default(),
        engine: record.engine,
        image: record.image,
        digest: record.digest,
        created_at: Some(timestamp(record.created_at)),
        used_at: Some(timestamp(record.used_at)),
    }
}
