//! An HTTP client for the API, and a reader of server-sent events.

use std::collections::VecDeque;

use reqwest::{Method, RequestBuilder, Response, StatusCode, header::HeaderMap};
use serde_json::Value;
use tokio::time::timeout;

use crate::harness::TIMEOUT;

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl HttpResponse {
    /// The code and the field of an error response.
    pub(crate) fn error(&self) -> (&str, &str) {
        let error = &self.body["error"];
        let id = error["request_id"].as_str().unwrap_or_default();
        assert_eq!(self.headers["x-request-id"], id, "every error has an id: {self:?}");
        (error["code"].as_str().unwrap_or_default(), error["details"]["field"].as_str().unwrap_or_default())
    }

    pub(crate) fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("no {field} in {self:?}")).to_owned()
    }
}

impl HttpClient {
    pub(crate) fn new(endpoint: &str) -> Self {
        // The client needs a TLS provider even without TLS. Another test may have installed it already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().unwrap();
        Self { client, base: endpoint.to_owned(), key: None }
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// A request to a path of the API, or to a path of the server if it begins with two slashes.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let path =
            path.strip_prefix("//").map_or_else(|| format!("/api/v1{path}"), |path| format!("/{path}"));
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        send(with_json(self.request(Method::POST, path), body)).await
    }

    /// Submits a run of tool calls and returns its id.
    pub(crate) async fn submit(&self, session: &str, calls: &Value) -> String {
        let body = serde_json::json!({ "create_session": true, "tools": { "calls": calls } });
        let response = self.post(&format!("/sessions/{session}/runs"), &body).await;
        assert_eq!(response.status, StatusCode::ACCEPTED, "{response:?}");
        response.text("run_id")
    }

    /// Opens a stream of events that is read as raw text. `last` is sent as `Last-Event-ID`.
    pub(crate) async fn raw_events(&self, path: &str, last: Option<&str>) -> RawSseStream {
        let mut request = self.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        RawSseStream { response, text: String::new() }
    }

    /// Opens a stream of events. `last` is sent as `Last-Event-ID`.
    pub(crate) async fn events(&self, path: &str, last: Option<i64>) -> SseStream {
        let mut request = self.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        SseStream { response, text: String::new(), read: VecDeque::new() }
    }
}

/// An open stream, read as raw text.
#[derive(Debug)]
pub(crate) struct RawSseStream {
    response: Response,
    pub(crate) text: String,
}

impl RawSseStream {
    /// Reads until the text contains `what`.
    pub(crate) async fn wait_for(&mut self, what: &str) {
        while !self.text.contains(what) {
            let chunk = timeout(TIMEOUT, self.response.chunk()).await.expect("the stream is silent");
            let chunk = chunk.unwrap().unwrap_or_else(|| panic!("the stream ended: {}", self.text));
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

pub(crate) fn with_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

pub(crate) async fn send(request: RequestBuilder) -> HttpResponse {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    HttpResponse { status, headers, body }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<i64>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

/// An open stream of events. Parses only the part of the format that this server uses.
#[derive(Debug)]
pub(crate) struct SseStream {
    response: Response,
    text: String,
    read: VecDeque<SseEvent>,
}

impl SseStream {
    /// The next event; `None` when the server has ended the stream.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(sent) = self.read.pop_front() {
                return Some(sent);
            }
            let chunk = timeout(TIMEOUT, self.response.chunk()).await.expect("the stream is silent");
            let chunk = chunk.ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                self.read.extend(parse(&block));
            }
        }
    }

    /// Reads all events up to the end of the stream.
    pub(crate) async fn rest(mut self) -> Vec<SseEvent> {
        let mut all = Vec::new();
        while let Some(sent) = self.next().await {
            all.push(sent);
        }
        all
    }
}

fn parse(block: &str) -> Option<SseEvent> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    let data = field("data: ")?;
    Some(SseEvent {
        id: field("id: ").map(|id| id.parse().unwrap()),
        event: field("event: ").unwrap_or_default().to_owned(),
        data: serde_json::from_str(data).unwrap(),
    })
}

/// The cursors of the events.
pub(crate) fn cursors(sent: &[SseEvent]) -> Vec<i64> {
    sent.iter().filter_map(|sent| sent.id).collect()
}
