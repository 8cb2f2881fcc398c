//! The outermost middleware: request ids, metrics, traces, error bodies, CORS and deadlines.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use hyper::{
    Method,
    header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};
use remuda_domain::{Code, Error};
use remuda_grpc::{Gate, REQUEST_ID, RequestMetrics, identify, within_limits};
use remuda_telemetry::{
    metrics::{KeyValue, OTHER, registry::label},
    spans,
};
use tower::{Layer, Service};
use tower_http::cors::CorsLayer;

use crate::error::{ApiError, ErrorParts};

/// Adds the outermost middleware to a router: request ids, error bodies, errors for unknown paths and methods, CORS, and
/// the gate's rules for browsers.
pub fn edge(router: Router, cors: CorsLayer, gate: Gate) -> Router {
    router
        .fallback(async || {
            ApiError(Error::new(Code::RouteNotFound, "there is no such path; see /openapi.json"))
        })
        .method_not_allowed_fallback(async || {
            ApiError(Error::new(
                Code::MethodNotAllowed,
                "the path does not take this method; see /openapi.json",
            ))
        })
        .layer(cors)
        .layer(middleware::from_fn_with_state((RequestMetrics::new("http"), gate), handle))
}

/// Runs the request within a span, if traces are exported. The span has the name of the route, since the number of
/// paths is unbounded.
async fn run_traced(request: Request, next: Next) -> Response {
    if !spans::are_collected() {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map_or("unknown route", MatchedPath::as_str);
    let span = remuda_grpc::http_span(&format!("{} {route}", request.method()));
    let caller = remuda_grpc::caller_trace(&request);
    remuda_grpc::within_span(span, caller, next.run(request), |span, response| {
        let status = response.status();
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    })
    .await
}

async fn handle(
    State((metrics, gate)): State<(RequestMetrics, Gate)>,
    mut request: Request,
    next: Next,
) -> Response {
    let (route, begun) = (route(&request), Instant::now());
    let id = identify(&mut request);
    let mut response = match gate.check_browser(request.method(), request.uri(), request.headers()) {
        Ok(()) => run_traced(request, next).await,
        Err(error) => ApiError(error).into_response(),
    };
    metrics.record(route, code(&response), begun.elapsed());
    if let Some(error) = response.extensions_mut().remove::<ErrorParts>() {
        let rendered = error.render(&id.0);
        let (mut head, _) = response.into_parts();
        let (rendered, body) = rendered.into_parts();
        head.headers.extend(rendered.headers);
        response = Response::from_parts(head, body);
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The label of a request in metrics: the route, never the requested path.
fn route(request: &Request) -> KeyValue {
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    match request.extensions().get::<MatchedPath>() {
        Some(path) if known.contains(request.method()) => {
            KeyValue::new(label::METHOD, format!("{} {}", request.method(), path.as_str()))
        }
        _ => KeyValue::new(label::METHOD, OTHER),
    }
}

fn code(response: &Response) -> &'static str {
    match response.extensions().get::<ErrorParts>() {
        Some(error) => error.code.as_str(),
        None if response.status().is_client_error() || response.status().is_server_error() => OTHER,
        None => "ok",
    }
}

/// A layer that fails requests without a response in time; reading the request counts, too. A request that takes long also
/// fails when its caller's key is revoked or expires.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Duration);

impl Deadline {
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self(limit)
    }
}

impl<S> Layer<S> for Deadline {
    type Service = Timed<S>;

    fn layer(&self, inner: S) -> Timed<S> {
        Timed { inner, limit: self.0 }
    }
}

/// The service of [`Deadline`].
#[derive(Clone, Debug)]
pub struct Timed<S> {
    inner: S,
    limit: Duration,
}

impl<S> Service<Request> for Timed<S>
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (answer, limit) = (self.inner.call(request), self.limit);
        Box::pin(async move {
            within_limits(limit, answer).await.unwrap_or_else(|error| Ok(ApiError(error).into_response()))
        })
    }
}
