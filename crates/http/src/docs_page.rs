//! The API's OpenAPI document and a self-contained documentation page.

use axum::{Json, Router, response::Html, routing::get};
use utoipa::openapi::OpenApi;

const PAGE: &str = include_str!("docs.html");

/// Serves `/openapi.json` and `/docs`.
pub fn docs(api: OpenApi) -> Router {
    Router::new()
        .route("/openapi.json", get(async move || Json(api.clone())))
        .route("/docs", get(async || Html(PAGE)))
}
