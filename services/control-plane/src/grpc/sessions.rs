use remuda_domain::identity::Scope;
use remuda_proto::v1::{self, session_service_server::SessionService};
use tonic::{Request, Response, Status, async_trait};

use super::Api;

#[async_trait]
impl SessionService for Api {
    async fn create_session(
        &self,
        request: Request<v1::CreateSessionRequest>,
    ) -> Result<Response<v1::CreateSessionResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.create_session(caller, body)).await
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Result<Response<v1::GetSessionResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.get_session(caller, body)).await
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_sessions(caller, body)).await
    }

    async fn update_session(
        &self,
        request: Request<v1::UpdateSessionRequest>,
    ) -> Result<Response<v1::UpdateSessionResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.update_session(caller, body)).await
    }

    async fn list_child_sessions(
        &self,
        request: Request<v1::ListChildSessionsRequest>,
    ) -> Result<Response<v1::ListChildSessionsResponse>, Status> {
        self.gate
            .answer(request, Scope::Read, |caller, body| self.calls.list_child_sessions(caller, body))
            .await
    }

    async fn close_session(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.close_session(caller, body)).await
    }

    async fn delete_session(
        &self,
        request: Request<v1::DeleteSessionRequest>,
    ) -> Result<Response<v1::DeleteSessionResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.delete_session(caller, body)).await
    }

    async fn cancel_session(
        &self,
        request: Request<v1::CancelSessionRequest>,
    ) -> Result<Response<v1::CancelSessionResponse>, Status> {
        self.gate.answer(request, Scope::Write, |caller, body| self.calls.cancel_session(caller, body)).await
    }

    async fn list_messages(
        &self,
        request: Request<v1::ListMessagesRequest>,
    ) -> Result<Response<v1::ListMessagesResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_messages(caller, body)).await
    }

    async fn list_queue(
        &self,
        request: Request<v1::ListQueueRequest>,
    ) -> Result<Response<v1::ListQueueResponse>, Status> {
        self.gate.answer(request, Scope::Read, |caller, body| self.calls.list_queue(caller, body)).await
    }
}
