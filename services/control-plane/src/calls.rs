//! The calls of the API, shared by gRPC and HTTP: protobuf requests in, protobuf responses out.
//!
//! Callers are authenticated and authorized before. A call parses the request, runs it in the application layer, and
//! builds the response.

mod approvals;
mod fleet;
mod page_size;
mod runs;
mod sessions;
mod webhooks;
mod workspaces;

use std::time::Duration;

use remuda_proto::v1;

use crate::app::App;

pub(crate) use self::runs::MAX_WAIT;

/// Time that a call with a wait may take beyond the wait, for reads before and after it.
pub(crate) const WAIT_MARGIN: Duration = Duration::from_secs(15);

/// Information about a server for its clients.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    pub version: String,
    /// `embedded` or `split`.
    pub mode: &'static str,
    /// Where clients find the stream service; empty when it is this server.
    pub stream_endpoint: String,
    /// Whether requests need an API key.
    pub keys_required: bool,
}

/// Implements the calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    app: App,
    info: ServerInfo,
}

impl Calls {
    pub(crate) fn new(app: App, info: ServerInfo) -> Self {
        Self { app, info }
    }

    /// For operations that only one protocol offers.
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    pub(crate) fn server_info(&self) -> v1::GetServerInfoResponse {
        let ServerInfo { version, mode, stream_endpoint, keys_required } = self.info.clone();
        v1::GetServerInfoResponse {
            version,
            mode: mode.to_owned(),
            stream_endpoint,
            keys_required,
            tools: self.app.tools().iter().cloned().collect(),
        }
    }
}
