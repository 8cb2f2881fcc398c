use remuda_proto::v1::{GetServerInfoRequest, GetServerInfoResponse, meta_service_server::MetaService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl MetaService for Api {
    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        Ok(Response::new(self.calls.server_info()))
    }
}
