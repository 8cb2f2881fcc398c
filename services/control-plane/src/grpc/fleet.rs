use remuda_proto::v1::{self, fleet_service_server::FleetService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl FleetService for Api {
    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.list_workers(caller, body)).await
    }

    async fn get_queue_stats(
        &self,
        request: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.get_queue_stats(caller, body)).await
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.list_tasks(caller, body)).await
    }

    async fn get_overview(
        &self,
        request: Request<v1::GetOverviewRequest>,
    ) -> Result<Response<v1::GetOverviewResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.get_overview(caller, body)).await
    }

    async fn list_sandboxes(
        &self,
        request: Request<v1::ListSandboxesRequest>,
    ) -> Result<Response<v1::ListSandboxesResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.list_sandboxes(caller, body)).await
    }

    async fn get_log_filter(
        &self,
        request: Request<v1::GetLogFilterRequest>,
    ) -> Result<Response<v1::GetLogFilterResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.get_log_filter(caller, body)).await
    }

    async fn set_log_filter(
        &self,
        request: Request<v1::SetLogFilterRequest>,
    ) -> Result<Response<v1::SetLogFilterResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.set_log_filter(caller, body)).await
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        self.gate.answer_operator(request, |caller, body| self.calls.drain_worker(caller, body)).await
    }
}
