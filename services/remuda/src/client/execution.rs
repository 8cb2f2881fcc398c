//! Flags for where a session's tools execute.

use remuda_proto::v1;

/// Where the tools of a new session execute.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecutionArgs {
    /// Where the session's tools execute. By default the setting of the tenant.
    #[arg(long, value_enum, value_name = "BACKEND", help_heading = "Execution")]
    backend: Option<Backend>,
    /// Container image for --backend docker. It must be present on the worker.
    #[arg(long, value_name = "IMAGE", help_heading = "Execution")]
    image: Option<String>,
    /// Network of the container: none, or a network that the operator allows.
    #[arg(long, value_name = "NETWORK", help_heading = "Execution")]
    network: Option<String>,
    /// How the container accesses the workspace.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Execution")]
    workspace_access: Option<Access>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// Tools do not execute; the session is for conversation only.
    None,
    /// As processes of the worker. Only for trusted work.
    Local,
    /// In a container of the session.
    Docker,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Access {
    /// The directory itself is mounted.
    Mount,
    /// The container works on a copy; changes are copied back after each call.
    Copy,
}

impl ExecutionArgs {
    /// The execution to request; `None` if no flag was given.
    pub(super) fn into_request(self) -> Option<v1::Execution> {
        let backend = self.backend.map(|backend| match backend {
            Backend::None => "none",
            Backend::Local => "local",
            Backend::Docker => "docker",
        });
        let access = self.workspace_access.map(|access| match access {
            Access::Mount => "mount",
            Access::Copy => "copy",
        });
        let execution = v1::Execution {
            backend: backend.unwrap_or_default().to_owned(),
            image: self.image.unwrap_or_default(),
            network: self.network.unwrap_or_default(),
            workspace_access: access.unwrap_or_default().to_owned(),
        };
        (execution != v1::Execution::default()).then_some(execution)
    }
}

/// The execution in one line of text.
pub(super) fn to_text(execution: Option<&v1::Execution>) -> String {
    let Some(v1::Execution { backend, image, network, workspace_access }) = execution else {
        return String::new();
    };
    let parts = [backend.as_str(), image.as_str(), network.as_str(), workspace_access.as_str()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}
