//! The services of a control plane over gRPC and HTTP.

use remuda_grpc::Gate;
use tonic::service::RoutesBuilder;
use utoipa_axum::router::OpenApiRouter;

use crate::{
    app::App,
    calls::{Calls, ServerInfo},
    grpc, http,
};

#[derive(Clone, Debug)]
pub struct Services {
    calls: Calls,
    gate: Gate,
}

impl Services {
    #[must_use]
    pub fn new(app: &App, gate: &Gate, info: ServerInfo) -> Self {
        Self { calls: Calls::new(app.clone(), info), gate: gate.clone() }
    }

    /// Adds the services to a gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        grpc::add_services(routes, &self.calls, &self.gate);
    }

    /// The same services as HTTP routes, to be nested under [`PREFIX`](crate::PREFIX).
    pub fn routes(&self) -> OpenApiRouter {
        http::routes(&self.calls, &self.gate)
    }
}
