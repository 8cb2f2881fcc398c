//! The API over HTTP: the calls of gRPC as routes with JSON bodies.

mod approvals;
mod artifacts;
mod fleet;
mod idempotency_key;
mod meta;
mod paging;
mod runs;
mod sessions;
mod webhooks;
mod workspaces;

use axum::extract::FromRef;
use remuda_grpc::Gate;
use utoipa::{
    OpenApi as _,
    openapi::{
        OpenApi,
        security::{Http as HttpScheme, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::meta::health_routes;
use crate::calls::{Calls, MAX_WAIT, WAIT_MARGIN};

/// All paths of the API begin with this.
pub const PREFIX: &str = "/api/v1";

#[derive(Clone)]
struct Http {
    calls: Calls,
    gate: Gate,
}

impl FromRef<Http> for Gate {
    fn from_ref(http: &Http) -> Self {
        http.gate.clone()
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Remuda", description = "Submit, follow and cancel runs of agents. Omitted fields have their default. Times are RFC 3339. Lists are paged. Every error has the same form and a stable code."),
    components(schemas(remuda_http::ErrorBody)),
    security(("key" = []), ()),
    tags(
        (name = "sessions", description = "A session executes its runs one at a time, in order."),
        (name = "runs", description = "Units of work."),
        (name = "events", description = "Live events of sessions and runs: see docs/streaming.md."),
        (name = "approvals", description = "Tool calls that wait for a person's decision."),
        (name = "webhooks", description = "Events sent to a URL: see docs/webhooks.md."),
        (name = "workspaces", description = "Directories that sessions work in."),
        (name = "fleet", description = "Workers, queues and background tasks, for operators."),
        (name = "meta", description = "The server and its health."),
    )
)]
struct Description;

/// The OpenAPI document without paths.
#[must_use]
pub fn description() -> OpenApi {
    let mut api = Description::openapi();
    let key = SecurityScheme::Http(HttpScheme::new(HttpAuthScheme::Bearer));
    api.components.get_or_insert_default().add_security_scheme("key", key);
    api
}

/// The routes of the control plane, with their OpenAPI descriptions.
pub(crate) fn routes(calls: &Calls, gate: &Gate) -> OpenApiRouter {
    let http = Http { calls: calls.clone(), gate: gate.clone() };
    let quick = OpenApiRouter::new()
        .routes(routes!(meta::server_info))
        .routes(routes!(workspaces::list, workspaces::create))
        .routes(routes!(workspaces::get))
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::get, sessions::update, sessions::delete))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::cancel))
        .routes(routes!(sessions::children))
        .routes(routes!(sessions::queue))
        .routes(routes!(sessions::set_budget))
        .routes(routes!(runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::steps))
        .routes(routes!(runs::trace))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::explain))
        .routes(routes!(runs::set_budget))
        .routes(routes!(runs::content))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::get))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get))
        .routes(routes!(approvals::decide))
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(webhooks::get, webhooks::update, webhooks::delete))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::dead_letters))
        .routes(routes!(webhooks::redeliver))
        .routes(routes!(fleet::workers))
        .routes(routes!(fleet::drain))
        .routes(routes!(fleet::queue))
        .routes(routes!(fleet::tasks))
        .routes(routes!(fleet::sandboxes))
        .routes(routes!(fleet::log_filter, fleet::set_log_filter))
        .routes(routes!(fleet::overview));
    // Routes that can wait for the end of a run have a longer deadline.
    let waiting = OpenApiRouter::new()
        .routes(routes!(sessions::messages, runs::send_message))
        .routes(routes!(runs::of_session, runs::submit))
        .routes(routes!(runs::wait));
    within(quick, gate.deadline()).merge(within(waiting, MAX_WAIT + WAIT_MARGIN)).with_state(http)
}

fn within(routes: OpenApiRouter<Http>, limit: std::time::Duration) -> OpenApiRouter<Http> {
    routes.layer(remuda_http::Deadline::new(limit))
}
