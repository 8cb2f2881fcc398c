//! The API's OpenAPI document and a self-contained documentation page.

use axum::{
    Json, Router,
    response::{Html, Redirect},
    routing::get,
};
use utoipa::openapi::OpenApi;

const PAGE: &str = include_str!("docs.html");

/// Serves `/openapi.json` and `/docs`, where `/` leads.
pub fn docs(api: OpenApi) -> Router {
    Router::new()
        .route("/", get(async || Redirect::temporary("/docs")))
        .route("/openapi.json", get(async move || Json(api.clone())))
        .route("/docs", get(async || Html(PAGE)))
}
