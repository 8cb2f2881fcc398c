//! The application layer over gRPC: translation, nothing else.

mod approvals;
mod fleet;
mod meta;
mod pages;
mod runs;
mod sessions;
mod workspaces;

pub use meta::ServerInfo;
use remuda_grpc::{Gate, limited};
use remuda_proto::v1::{
    approval_service_server::ApprovalServiceServer, fleet_service_server::FleetServiceServer,
    meta_service_server::MetaServiceServer, run_service_server::RunServiceServer,
    session_service_server::SessionServiceServer, workspace_service_server::WorkspaceServiceServer,
};
use tonic::service::RoutesBuilder;

use crate::app::App;

/// Adds the services of the control plane to a server.
pub fn add_services(routes: &mut RoutesBuilder, app: &App, gate: &Gate, info: ServerInfo) {
    let api = Api { app: app.clone(), gate: gate.clone() };
    routes.add_service(limited!(SessionServiceServer::new(api.clone())));
    routes.add_service(limited!(RunServiceServer::new(api.clone())));
    routes.add_service(limited!(ApprovalServiceServer::new(api.clone())));
    routes.add_service(limited!(WorkspaceServiceServer::new(api.clone())));
    routes.add_service(limited!(FleetServiceServer::new(api.clone())));
    routes.add_service(limited!(MetaServiceServer::new(meta::Meta { api, info })));
}

#[derive(Clone, Debug)]
struct Api {
    app: App,
    gate: Gate,
}
