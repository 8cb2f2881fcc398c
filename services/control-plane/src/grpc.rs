//! The API over gRPC: checks the scope of each call and forwards it to [`Calls`].

mod approvals;
mod fleet;
mod meta;
mod runs;
mod sessions;
mod webhooks;
mod workspaces;

use remuda_grpc::{Gate, limited};
use remuda_proto::v1::{
    approval_service_server::ApprovalServiceServer, fleet_service_server::FleetServiceServer,
    meta_service_server::MetaServiceServer, run_service_server::RunServiceServer,
    session_service_server::SessionServiceServer, webhook_service_server::WebhookServiceServer,
    workspace_service_server::WorkspaceServiceServer,
};
use tonic::service::RoutesBuilder;

use crate::calls::Calls;

/// Adds the services of the control plane to a server.
pub(crate) fn add_services(routes: &mut RoutesBuilder, calls: &Calls, gate: &Gate) {
    let api = Api { calls: calls.clone(), gate: gate.clone() };
    routes.add_service(limited!(SessionServiceServer::new(api.clone())));
    routes.add_service(limited!(RunServiceServer::new(api.clone())));
    routes.add_service(limited!(ApprovalServiceServer::new(api.clone())));
    routes.add_service(limited!(WebhookServiceServer::new(api.clone())));
    routes.add_service(limited!(WorkspaceServiceServer::new(api.clone())));
    routes.add_service(limited!(FleetServiceServer::new(api.clone())));
    routes.add_service(limited!(MetaServiceServer::new(api)));
}

#[derive(Clone, Debug)]
struct Api {
    calls: Calls,
    gate: Gate,
}
