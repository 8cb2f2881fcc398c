//! One HTTP request to a provider, and its response as an event stream or as a whole.

mod address_rule;
mod client;
mod endpoint_url;

use std::{fmt, sync::Arc, time::Duration};

use remuda_domain::{error::Code, trace::TraceContext};
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, LOCATION},
};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

pub use address_rule::AddressRule;
pub(crate) use address_rule::EndpointRule;
pub(crate) use client::{client, tls_config};
pub(crate) use endpoint_url::{add_headers, base_url, secret_header, with_path};

use crate::{
    AttemptError, ModelOptions,
    provider_error::ErrorMapper,
    sse::{Decoder, Event, TooLong},
};

/// Limit for the body of an error response.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the end of a finished response, so that its connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

type Result<T> = std::result::Result<T, AttemptError>;

/// The endpoint of one model.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) client: Client,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) errors: ErrorMapper,
    pub(crate) options: Arc<ModelOptions>,
}

/// A successful response. Its kind is detected from its first byte: servers declare wrong content types, and some
/// ignore the request to stream.
pub(crate) enum HttpResponse {
    Events(Box<Events>),
    Json(Value),
}

/// A streamed response.
pub(crate) struct Events {
    body: Body,
    decoder: Decoder,
    ended: bool,
}

struct Body {
    response: Response,
    received: usize,
    errors: ErrorMapper,
    options: Arc<ModelOptions>,
}

/// Shows neither URL nor headers: both may hold a key.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("host", &self.errors.host).finish_non_exhaustive()
    }
}

impl Target {
    pub(crate) async fn post(&self, body: &Value, trace: Option<TraceContext>) -> Result<HttpResponse> {
        let deadline = Instant::now() + self.options.first_byte_timeout;
        let mut request = self.client.post(self.url.clone()).headers(self.headers.clone());
        if let Some(trace) = trace {
            request = request.header("traceparent", trace.to_string());
        }
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json");
        let sent = timeout_at(deadline, request.body(body.to_string()).send()).await;
        let response = match sent {
            Err(_) => return Err(self.first_byte_timeout()),
            Ok(sent) => sent.map_err(|error| self.errors.connection_error("cannot reach", error))?,
        };
        let status = response.status();
        if status.is_redirection() {
            return Err(self.redirect_error(&response));
        }
        if !status.is_success() {
            let headers = response.headers().clone();
            return Err(self.errors.status_error(status, &headers, &error_body(response).await));
        }
        let (errors, options) = (self.errors.clone(), Arc::clone(&self.options));
        let mut body = Body { response, received: 0, errors, options };
        let mut first_bytes = Vec::new();
        let first = loop {
            let Ok(chunk) = timeout_at(deadline, body.chunk()).await else {
                return Err(self.first_byte_timeout());
            };
            let Some(chunk) = chunk? else { return Err(self.errors.truncated()) };
            first_bytes.extend_from_slice(&chunk);
            if let Some(first) = first_bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
                break *first;
            }
        };
        match first {
            b'{' | b'[' => Ok(HttpResponse::Json(body.into_json(first_bytes).await?)),
            b'<' => {
                let message = format!("{} answered with a web page: check the url", self.errors.host);
                Err(AttemptError::never(Code::ModelAnswerInvalid, message))
            }
            _ => {
                let mut decoder = Decoder::new(self.options.max_event_bytes);
                decoder.push(&first_bytes).map_err(|too_long| body.too_long(too_long))?;
                Ok(HttpResponse::Events(Box::new(Events { body, decoder, ended: false })))
            }
        }
    }

    fn first_byte_timeout(&self) -> AttemptError {
        let message = format!("{} was silent for {:?}", self.errors.host, self.options.first_byte_timeout);
        AttemptError::fault(Code::ModelTimedOut, message)
    }

    /// Redirects are not followed: the key is for this host, and a new URL belongs into the definition.
    fn redirect_error(&self, response: &Response) -> AttemptError {
        let to = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let to = to.and_then(|to| self.url.join(to).ok()).map_or_else(String::new, |mut url| {
            url.set_query(None);
            format!(" to {}", self.errors.secrets.clean(url.as_str()))
        });
        let message = format!("{} redirects{to}: redirects are not followed", self.errors.host);
        AttemptError::never(Code::ModelRequestRefused, message)
    }
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.decoder.next() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            let fed = match self.body.next().await? {
                Some(chunk) => self.decoder.push(&chunk),
                None => {
                    self.ended = true;
                    self.decoder.finish()
                }
            };
            fed.map_err(|too_long| self.body.too_long(too_long))?;
        }
    }

    /// Parses the data of an event.
    pub(crate) fn json(&self, event: &Event) -> Result<Value> {
        // Without the parse error, which would quote the response.
        serde_json::from_str(&event.data).map_err(|_| match event.cut {
            true => self.body.errors.truncated(),
            false => self.body.errors.invalid_response("an event that is not JSON"),
        })
    }

    /// Reads to the end of a response whose content is complete.
    pub(crate) async fn close(mut self) {
        // Nothing depends on the rest.
        drop(timeout(DRAIN_TIMEOUT, async { while let Ok(Some(_)) = self.body.next().await {} }).await);
    }
}

impl Body {
    /// The next chunk, within the idle timeout.
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let wait = self.options.idle_timeout;
        let Ok(chunk) = timeout(wait, self.chunk()).await else {
            let message = format!("{} fell silent for {wait:?} in the middle of an answer", self.errors.host);
            return Err(AttemptError::fault(Code::ModelTimedOut, message));
        };
        chunk
    }

    async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let chunk = self.response.chunk().await;
        let Some(chunk) =
            chunk.map_err(|error| self.errors.connection_error("lost the connection to", error))?
        else {
            return Ok(None);
        };
        self.received += chunk.len();
        if self.received > self.options.max_response_bytes {
            let limit = self.options.max_response_bytes;
            let message = format!("the answer of {} is longer than {limit} bytes", self.errors.host);
            return Err(AttemptError::never(Code::ModelAnswerInvalid, message));
        }
        Ok(Some(chunk.into()))
    }

    async fn into_json(mut self, mut bytes: Vec<u8>) -> Result<Value> {
        while let Some(chunk) = self.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&bytes).map_err(|_| self.errors.invalid_response("something that is not JSON"))
    }

    fn too_long(&self, _: TooLong) -> AttemptError {
        let limit = self.options.max_event_bytes;
        let message = format!("an event in the answer of {} is longer than {limit} bytes", self.errors.host);
        AttemptError::never(Code::ModelAnswerInvalid, message)
    }
}

/// The beginning of an error response's body.
async fn error_body(mut response: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = MAX_ERROR_BYTES - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() >= room {
                break;
            }
        }
    };
    // The status counts even if the body is incomplete.
    drop(timeout(ERROR_TIMEOUT, read).await);
    bytes
}
