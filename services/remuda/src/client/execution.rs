//! Where a session's tools execute, as flags.

use remuda_proto::v1;

/// Where the tools of a new session execute.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecutionArgs {
    /// Where the session's tools execute; what the tenant has as its default when missing.
    #[arg(long, value_enum, value_name = "BACKEND", help_heading = "Execution")]
    backend: Option<Backend>,
    /// Container image, for --backend docker. It must be on the engine already.
    #[arg(long, value_name = "IMAGE", help_heading = "Execution")]
    image: Option<String>,
    /// Network of the container: none, or one that the operator allows.
    #[arg(long, value_name = "NETWORK", help_heading = "Execution")]
    network: Option<String>,
    /// How the container gets at the workspace.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Execution")]
    workspace_access: Option<Access>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// Not at all: the session only talks.
    None,
    /// As processes of the worker, which is for work you trust.
    Local,
    /// In a container of the session's own.
    Docker,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Access {
    /// The directory itself is mounted.
    Mount,
    /// The container works on a copy; what a call changed is copied back.
    Copy,
}

impl ExecutionArgs {
    /// What to ask for; nothing when no flag was given.
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

/// The same in one line, for people.
pub(super) fn in_words(execution: Option<&v1::Execution>) -> String {
    let Some(v1::Execution { backend, image, network, workspace_access }) = execution else {
        return String::new();
    };
    let parts = [backend.as_str(), image.as_str(), network.as_str(), workspace_access.as_str()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}
