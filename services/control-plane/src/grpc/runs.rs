use remuda_domain::identity::Scope;
use remuda_proto::v1::{self, run_service_server::RunService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;
use crate::calls::{MAX_WAIT, WAIT_MARGIN};

#[async_trait]
impl RunService for Api {
    async fn submit_run(
        &self,
        request: Request<v1::SubmitRunRequest>,
    ) -> Result<Response<v1::SubmitRunResponse>, Status> {
        let cause = remuda_grpc::cause(request.metadata().as_ref());
        let deadline = match request.get_ref().wait {
            Some(_) => MAX_WAIT + WAIT_MARGIN,
            None => self.gate.deadline(),
        };
        self.gate
            .answer_within(deadline, request, Scope::Write, |caller, body| {
                self.calls.submit_run(caller, body, cause)
            })
            .await
    }

    async fn get_run(
        &self,
        request: Request<v1::GetRunRequest>,
    ) -> Result<Response<v1::GetRunResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_run(caller, body)).await
    }

    async fn get_run_trace(
        &self,
        request: Request<v1::GetRunTraceRequest>,
    ) -> Result<Response<v1::GetRunTraceResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_run_trace(caller, body)).await
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_runs(caller, body)).await
    }

    async fn list_steps(
        &self,
        request: Request<v1::ListStepsRequest>,
    ) -> Result<Response<v1::ListStepsResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_steps(caller, body)).await
    }

    async fn get_content(
        &self,
        request: Request<v1::GetContentRequest>,
    ) -> Result<Response<v1::GetContentResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_content(caller, body)).await
    }

    async fn cancel_run(
        &self,
        request: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.cancel_run(caller, body)).await
    }

    async fn wait_run(
        &self,
        request: Request<v1::WaitRunRequest>,
    ) -> Result<Response<v1::WaitRunResponse>, Status> {
        let wait = MAX_WAIT + WAIT_MARGIN;
        self.gate
            .answer_within(wait, request, Scope::Read, |caller, body| self.calls.wait_run(caller, body))
            .await
    }

    async fn set_budget(
        &self,
        request: Request<v1::SetBudgetRequest>,
    ) -> Result<Response<v1::SetBudgetResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.set_budget(caller, body)).await
    }

    async fn explain_run(
        &self,
        request: Request<v1::ExplainRunRequest>,
    ) -> Result<Response<v1::ExplainRunResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.explain_run(caller, body)).await
    }
}
