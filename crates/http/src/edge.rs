//! What every request passes on its way in and every response on its way out.

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
use remuda_grpc::{REQUEST_ID, Requests, identify};
use remuda_telemetry::{
    metrics::{KeyValue, OTHER, registry::label},
    spans,
};
use tower::{Layer, Service};
use tower_http::cors::CorsLayer;

use crate::refusal::{Refusal, Refused};

/// Finishes a router: ids, errors, answers to what is not there, and to pages of other origins.
pub fn edge(router: Router, cors: CorsLayer) -> Router {
    router
        .fallback(async || {
            Refused(Error::new(Code::RouteNotFound, "there is no such path; see /openapi.json"))
        })
        .method_not_allowed_fallback(async || {
            Refused(Error::new(
                Code::MethodNotAllowed,
                "the path does not take this method; see /openapi.json",
            ))
        })
        .layer(cors)
        .layer(middleware::from_fn_with_state(Requests::new("http"), pass))
}

/// Within a span that has the name of the route, where traces are collected: paths are without number.
async fn answer(request: Request, next: Next) -> Response {
    if !spans::are_collected() {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map_or("unknown route", MatchedPath::as_str);
    let span = remuda_grpc::of_route(&format!("{} {route}", request.method()));
    let caller = remuda_grpc::caller_of(&request);
    remuda_grpc::within_span(span, caller, next.run(request), |span, response| {
        let status = response.status();
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    })
    .await
}

async fn pass(State(requests): State<Requests>, mut request: Request, next: Next) -> Response {
    let (route, begun) = (route(&request), Instant::now());
    let id = identify(&mut request);
    let mut response = answer(request, next).await;
    requests.answered(route, code(&response), begun.elapsed());
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let told = refusal.render(&id.0);
        let (mut head, _) = response.into_parts();
        let (worded, body) = told.into_parts();
        head.headers.extend(worded.headers);
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

/// What metrics call a request: the path as it is described, never as it was asked for.
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
    match response.extensions().get::<Refusal>() {
        Some(refusal) => refusal.code.as_str(),
        None if response.status().is_client_error() || response.status().is_server_error() => OTHER,
        None => "ok",
    }
}

/// Refuses what has no answer in time, reading the request included: a layer for routers.
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

/// What [`Deadline`] makes.
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
            let late = || Error::new(Code::DeadlineExceeded, format!("no answer within {limit:?}"));
            match tokio::time::timeout(limit, answer).await {
                Ok(response) => response,
                Err(_) => Ok(Refused(late()).into_response()),
            }
        })
    }
}
