//! One method per call.

use std::time::Duration;

use remuda_domain::{error::Result, limits};
use remuda_proto::{
    convert,
    v1::{
        self, approval_service_client::ApprovalServiceClient, fleet_service_client::FleetServiceClient,
        meta_service_client::MetaServiceClient, run_service_client::RunServiceClient,
        session_service_client::SessionServiceClient, webhook_service_client::WebhookServiceClient,
        workspace_service_client::WorkspaceServiceClient,
    },
};
use tonic::Request;

use crate::Client;

macro_rules! calls {
    ($($(#[$doc:meta])* $service:ident :: $method:ident($request:ident) -> $response:ident;)*) => {
        impl Client {$(
            $(#[$doc])*
            pub async fn $method(&self, request: v1::$request) -> Result<v1::$response> {
                let mut request = Request::new(request);
                request.set_timeout(self.options().request_timeout);
                let mut service = $service::with_interceptor(self.main().channel.clone(), self.auth())
                    .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(limits::MAX_MESSAGE_BYTES);
                let response = service.$method(request).await;
                self.convert(self.main(), response).map(tonic::Response::into_inner)
            }
        )*}
    };
}

calls! {
    SessionServiceClient::create_session(CreateSessionRequest) -> CreateSessionResponse;
    SessionServiceClient::get_session(GetSessionRequest) -> GetSessionResponse;
    SessionServiceClient::list_sessions(ListSessionsRequest) -> ListSessionsResponse;
    SessionServiceClient::update_session(UpdateSessionRequest) -> UpdateSessionResponse;
    /// Closes a session: it accepts no more runs.
    SessionServiceClient::close_session(CloseSessionRequest) -> CloseSessionResponse;
    SessionServiceClient::delete_session(DeleteSessionRequest) -> DeleteSessionResponse;
    /// Cancels every unfinished run of a session, or of a whole tree of sessions.
    SessionServiceClient::cancel_session(CancelSessionRequest) -> CancelSessionResponse;
    SessionServiceClient::list_messages(ListMessagesRequest) -> ListMessagesResponse;
    /// The unfinished runs of a session, in execution order.
    SessionServiceClient::list_queue(ListQueueRequest) -> ListQueueResponse;
    /// The direct children of a session.
    SessionServiceClient::list_child_sessions(ListChildSessionsRequest) -> ListChildSessionsResponse;
    RunServiceClient::get_run(GetRunRequest) -> GetRunResponse;
    RunServiceClient::list_runs(ListRunsRequest) -> ListRunsResponse;
    RunServiceClient::list_steps(ListStepsRequest) -> ListStepsResponse;
    /// The text of a content hash in a step.
    RunServiceClient::get_content(GetContentRequest) -> GetContentResponse;
    /// Requests the cancellation of a run.
    RunServiceClient::cancel_run(CancelRunRequest) -> CancelRunResponse;
    /// Explains why a run is not finished.
    RunServiceClient::explain_run(ExplainRunRequest) -> ExplainRunResponse;
    /// How a run spent its time and money.
    RunServiceClient::get_run_trace(GetRunTraceRequest) -> GetRunTraceResponse;
    /// Changes a budget.
    RunServiceClient::set_budget(SetBudgetRequest) -> SetBudgetResponse;
    ApprovalServiceClient::get_approval(GetApprovalRequest) -> GetApprovalResponse;
    ApprovalServiceClient::list_approvals(ListApprovalsRequest) -> ListApprovalsResponse;
    /// Approves or denies a call, once.
    ApprovalServiceClient::decide_approval(DecideApprovalRequest) -> DecideApprovalResponse;
    /// Creates a webhook for a session or a run. Only this response contains its secret.
    WebhookServiceClient::create_webhook(CreateWebhookRequest) -> CreateWebhookResponse;
    WebhookServiceClient::get_webhook(GetWebhookRequest) -> GetWebhookResponse;
    WebhookServiceClient::list_webhooks(ListWebhooksRequest) -> ListWebhooksResponse;
    WebhookServiceClient::delete_webhook(DeleteWebhookRequest) -> DeleteWebhookResponse;
    /// Stops deliveries, or resumes them where they stopped.
    WebhookServiceClient::enable_webhook(EnableWebhookRequest) -> EnableWebhookResponse;
    /// Creates a new secret. Deliveries are signed with both for a day.
    WebhookServiceClient::rotate_webhook_secret(RotateWebhookSecretRequest) -> RotateWebhookSecretResponse;
    /// Sends a test delivery and returns the receiver's response.
    WebhookServiceClient::test_webhook(TestWebhookRequest) -> TestWebhookResponse;
    /// Events whose delivery was given up.
    WebhookServiceClient::list_dead_letters(ListDeadLettersRequest) -> ListDeadLettersResponse;
    /// Requests redelivery of dead letters.
    WebhookServiceClient::redeliver(RedeliverRequest) -> RedeliverResponse;
    /// Registers a directory on the workers.
    WorkspaceServiceClient::create_workspace(CreateWorkspaceRequest) -> CreateWorkspaceResponse;
    WorkspaceServiceClient::get_workspace(GetWorkspaceRequest) -> GetWorkspaceResponse;
    WorkspaceServiceClient::list_workspaces(ListWorkspacesRequest) -> ListWorkspacesResponse;
    FleetServiceClient::list_workers(ListWorkersRequest) -> ListWorkersResponse;
    FleetServiceClient::get_queue_stats(GetQueueStatsRequest) -> GetQueueStatsResponse;
    FleetServiceClient::drain_worker(DrainWorkerRequest) -> DrainWorkerResponse;
    /// Background tasks of the control plane.
    FleetServiceClient::list_tasks(ListTasksRequest) -> ListTasksResponse;
    /// Sandboxes outside of the worker processes.
    FleetServiceClient::list_sandboxes(ListSandboxesRequest) -> ListSandboxesResponse;
    /// Log filters of the processes.
    FleetServiceClient::get_log_filter(GetLogFilterRequest) -> GetLogFilterResponse;
    /// Changes the log filters of processes temporarily.
    FleetServiceClient::set_log_filter(SetLogFilterRequest) -> SetLogFilterResponse;
    /// Everything that a live view shows, in one response.
    FleetServiceClient::get_overview(GetOverviewRequest) -> GetOverviewResponse;
    MetaServiceClient::get_server_info(GetServerInfoRequest) -> GetServerInfoResponse;
}

impl Client {
    fn runs(&self) -> RunServiceClient<crate::client::Authorized> {
        RunServiceClient::with_interceptor(self.main().channel.clone(), self.auth())
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    }

    /// Submits a run. On success the run is committed.
    ///
    /// An unavailable server is retried only if the request has an idempotency key: without one a retry could create
    /// a second run.
    pub async fn submit(&self, request: v1::SubmitRunRequest) -> Result<v1::SubmitRunResponse> {
        let mut retry = self.retry();
        let wait = request.wait.and_then(convert::plain_duration).unwrap_or_default();
        loop {
            let mut attempt = Request::new(request.clone());
            attempt.set_timeout(self.options().request_timeout.saturating_add(wait));
            let response = self.runs().submit_run(attempt).await;
            let error = match self.convert(self.main(), response) {
                Ok(response) => return Ok(response.into_inner()),
                Err(error) => error,
            };
            let repeatable = !request.idempotency_key.is_empty() && self.was_reached();
            if !repeatable || !error.code().is_outage() {
                return Err(error);
            }
            retry.after(error).await?;
        }
    }

    /// Returns when the run is finished, or with its current state after `max_wait`. Most callers want
    /// [`Client::wait_until_finished`].
    pub async fn wait_run(&self, run_id: &str, max_wait: Duration) -> Result<v1::WaitRunResponse> {
        let mut request = Request::new(v1::WaitRunRequest {
            run_id: run_id.to_owned(),
            max_wait: max_wait.try_into().ok(),
        });
        request.set_timeout(self.options().request_timeout.saturating_add(max_wait));
        let response = self.runs().wait_run(request).await;
        self.convert(self.main(), response).map(tonic::Response::into_inner)
    }
}
