use axum::{Json, extract::State};
use hyper::StatusCode;
use remuda_api::ServerInfo;
use remuda_http::CommonErrors;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::Http;
use crate::health::{self, Health};

/// Returns version, mode and tools of this server.
#[utoipa::path(get, path = "", tag = "meta", operation_id = "get_server_info",
    responses((status = 200, body = ServerInfo), CommonErrors))]
pub(super) async fn server_info(State(http): State<Http>) -> Json<ServerInfo> {
    Json(http.calls.server_info().into())
}

#[derive(Clone, Serialize, ToSchema)]
struct Alive {
    /// `ok`
    status: &'static str,
}

/// The readiness of the server and of its dependencies.
#[derive(Clone, Serialize, ToSchema)]
struct Readiness {
    /// `ready`, `not_ready`, or `draining` during shutdown.
    status: &'static str,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Serialize, ToSchema)]
struct Dependency {
    /// `store` or `transport`.
    name: &'static str,
    /// `up`, `down`, or `full` if it responds but has no room on its disk.
    status: &'static str,
}

/// Liveness: the process is running. Restart it if this fails.
#[utoipa::path(get, path = "/healthz", tag = "meta", operation_id = "healthz", responses((status = 200, body = Alive)))]
async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok" })
}

/// Readiness: the store and the transport respond, the store has room for writes, and the server is not shutting down.
#[utoipa::path(get, path = "/readyz", tag = "meta", operation_id = "readyz",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness, description = "A dependency does not respond or has no room, or the server is shutting down.")))]
async fn readyz(State(health): State<watch::Receiver<Health>>) -> (StatusCode, Json<Readiness>) {
    let now = *health.borrow();
    let status = |dependency| match dependency {
        health::Dependency::Up => "up",
        health::Dependency::Down => "down",
        health::Dependency::Full => "full",
    };
    let dependencies = vec![
        Dependency { name: "store", status: status(now.store) },
        Dependency { name: "transport", status: status(now.transport) },
    ];
    let (code, status) = match now {
        Health { draining: true, .. } => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        ready if ready.is_ready() => (StatusCode::OK, "ready"),
        Health { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
    };
    (code, Json(Readiness { status, dependencies }))
}

/// Health routes for load balancers and Kubernetes. They need no key.
pub fn health_routes(health: watch::Receiver<Health>) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).with_state(health)
}
