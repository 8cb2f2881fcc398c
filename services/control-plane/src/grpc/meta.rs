use remuda_proto::v1::{GetServerInfoRequest, GetServerInfoResponse, meta_service_server::MetaService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

/// What a server says of itself.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    pub version: String,
    /// `embedded` or `split`.
    pub mode: &'static str,
    /// Where clients find the stream service; empty when it is this server.
    pub stream_endpoint: String,
}

#[derive(Debug)]
pub(super) struct Meta {
    pub(super) api: Api,
    pub(super) info: ServerInfo,
}

#[async_trait]
impl MetaService for Meta {
    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        Ok(Response::new(GetServerInfoResponse {
            version: self.info.version.clone(),
            mode: self.info.mode.to_owned(),
            stream_endpoint: self.info.stream_endpoint.clone(),
            keys_required: self.api.gate.keys_required(),
            tools: self.api.app.tools().iter().cloned().collect(),
        }))
    }
}
