use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::ServerInfo;
use remuda_http::Refusals;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::Http;
use crate::health::Health;

/// What this server is.
#[utoipa::path(get, path = "", tag = "meta", operation_id = "get_server_info",
    responses((status = 200, body = ServerInfo), Refusals))]
pub(super) async fn server_info(State(http): State<Http>) -> Json<ServerInfo> {
    Json(http.calls.server_info().into())
}

#[derive(Clone, Serialize, ToSchema)]
struct Alive {
    /// `ok`
    status: &'static str,
}

/// How the server is, and what it needs.
#[derive(Clone, Serialize, ToSchema)]
struct Readiness {
    /// `ready`, `not_ready`, or `draining` once the server was told to stop.
    status: &'static str,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Serialize, ToSchema)]
struct Dependency {
    /// `store` or `transport`.
    name: &'static str,
    /// `up` or `down`.
    status: &'static str,
}

/// Whether the process lives. Ask this to decide about a restart.
#[utoipa::path(get, path = "/healthz", tag = "meta", operation_id = "healthz", responses((status = 200, body = Alive)))]
async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok" })
}

/// Whether requests should be sent here: the store and the transport answer, and the server is not about to stop.
#[utoipa::path(get, path = "/readyz", tag = "meta", operation_id = "readyz",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness, description = "A dependency does not answer, or the server stops.")))]
async fn readyz(State(health): State<watch::Receiver<Health>>) -> (StatusCode, Json<Readiness>) {
    let now = *health.borrow();
    let word = |up| if up { "up" } else { "down" };
    let dependencies = vec![
        Dependency { name: "store", status: word(now.store) },
        Dependency { name: "transport", status: word(now.transport) },
    ];
    let (code, status) = match now {
        Health { draining: true, .. } => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Health { store: true, transport: true, .. } => (StatusCode::OK, "ready"),
        Health { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
    };
    (code, Json(Readiness { status, dependencies }))
}

/// What load balancers and Kubernetes ask over HTTP. Needs no key.
pub fn health_routes(health: watch::Receiver<Health>) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).with_state(health)
}
