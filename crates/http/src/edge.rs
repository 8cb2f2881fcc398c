//! What every request passes on its way in and every response on its way out.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use remuda_domain::{Code, Error};
use tower::{Layer, Service};
use tower_http::cors::CorsLayer;
use uuid::Uuid;

use crate::refusal::{Refusal, Refused};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_CHARS: usize = 128;

/// The id by which a request is found in the log.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

/// The caller's own, if it can stand in a log; else a new one.
fn request_id(request: &Request) -> RequestId {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let plain = |id: &&str| {
        let fits = (1..=MAX_ID_CHARS).contains(&id.len());
        fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    RequestId(given.filter(plain).map_or_else(|| format!("req_{}", Uuid::now_v7().simple()), str::to_owned))
}

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
        .layer(middleware::from_fn(pass))
}

async fn pass(mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
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
