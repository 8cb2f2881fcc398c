//! One request over HTTP, and its answer as events or as a whole.

mod address;
mod client;
mod rule;

use std::{fmt, sync::Arc, time::Duration};

use remuda_domain::{error::Code, trace::TraceContext};
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, LOCATION},
};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use address::{add_headers, base, secret_header, under};
pub(crate) use client::{client, tls_config};
pub use rule::AddressRule;
pub(crate) use rule::Gate;

use crate::{
    AttemptError, ModelOptions,
    failure::Faults,
    sse::{Decoder, Event, TooLong},
};

/// Of an answer that is an error.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a finished answer is waited for, so that its connection can be used again.
const LINGER: Duration = Duration::from_millis(50);

type Result<T> = std::result::Result<T, AttemptError>;

/// Where one model is asked.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) client: Client,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) faults: Faults,
    pub(crate) options: Arc<ModelOptions>,
}

/// What comes back. It is told apart by how it begins: servers err in what they declare, and some ignore that a stream was asked for.
pub(crate) enum Answer {
    Events(Box<Events>),
    Whole(Value),
}

/// A streamed answer.
pub(crate) struct Events {
    body: Body,
    decoder: Decoder,
    ended: bool,
}

struct Body {
    response: Response,
    received: usize,
    faults: Faults,
    options: Arc<ModelOptions>,
}

/// The address may hold a key in its query, and headers do.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("host", &self.faults.host).finish_non_exhaustive()
    }
}

impl Target {
    pub(crate) async fn post(&self, body: &Value, trace: Option<TraceContext>) -> Result<Answer> {
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
            Err(_) => return Err(self.silent()),
            Ok(sent) => sent.map_err(|error| self.faults.broken("cannot reach", error))?,
        };
        let status = response.status();
        if status.is_redirection() {
            return Err(self.redirected(&response));
        }
        if !status.is_success() {
            let headers = response.headers().clone();
            return Err(self.faults.refused(status, &headers, &beginning(response).await));
        }
        let (faults, options) = (self.faults.clone(), Arc::clone(&self.options));
        let mut body = Body { response, received: 0, faults, options };
        let mut start = Vec::new();
        let first = loop {
            let Ok(chunk) = timeout_at(deadline, body.chunk()).await else { return Err(self.silent()) };
            let Some(chunk) = chunk? else { return Err(self.faults.truncated()) };
            start.extend_from_slice(&chunk);
            if let Some(first) = start.iter().find(|byte| !byte.is_ascii_whitespace()) {
                break *first;
            }
        };
        match first {
            b'{' | b'[' => Ok(Answer::Whole(body.whole(start).await?)),
            b'<' => {
                let message = format!("{} answered with a web page: check the url", self.faults.host);
                Err(AttemptError::never(Code::ModelAnswerInvalid, message))
            }
            _ => {
                let mut decoder = Decoder::new(self.options.max_event_bytes);
                decoder.push(&start).map_err(|too_long| body.too_long(too_long))?;
                Ok(Answer::Events(Box::new(Events { body, decoder, ended: false })))
            }
        }
    }

    fn silent(&self) -> AttemptError {
        let message = format!("{} was silent for {:?}", self.faults.host, self.options.first_byte_timeout);
        AttemptError::fault(Code::ModelTimedOut, message)
    }

    /// Never followed: the key is for this host, and a changed address belongs into the definition.
    fn redirected(&self, response: &Response) -> AttemptError {
        let to = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let to = to.and_then(|to| self.url.join(to).ok()).map_or_else(String::new, |mut url| {
            url.set_query(None);
            format!(" to {}", self.faults.secrets.clean(url.as_str()))
        });
        let message = format!("{} redirects{to}: redirects are not followed", self.faults.host);
        AttemptError::never(Code::ModelRequestRefused, message)
    }
}

impl Events {
    /// The next event; none when the stream is over.
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

    /// Reads the data of an event.
    pub(crate) fn json(&self, event: &Event) -> Result<Value> {
        // Without what was wrong: that would repeat what was said.
        serde_json::from_str(&event.data).map_err(|_| match event.cut {
            true => self.body.faults.truncated(),
            false => self.body.faults.nonsense("an event that is not JSON"),
        })
    }

    /// Nothing more is of interest.
    pub(crate) async fn close(mut self) {
        // Whatever comes, or does not, changes nothing.
        drop(timeout(LINGER, async { while let Ok(Some(_)) = self.body.next().await {} }).await);
    }
}

impl Body {
    /// The next piece, within the time for one.
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let wait = self.options.idle_timeout;
        let Ok(chunk) = timeout(wait, self.chunk()).await else {
            let message = format!("{} fell silent for {wait:?} in the middle of an answer", self.faults.host);
            return Err(AttemptError::fault(Code::ModelTimedOut, message));
        };
        chunk
    }

    async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let chunk = self.response.chunk().await;
        let Some(chunk) = chunk.map_err(|error| self.faults.broken("lost the connection to", error))? else {
            return Ok(None);
        };
        self.received += chunk.len();
        if self.received > self.options.max_response_bytes {
            let limit = self.options.max_response_bytes;
            let message = format!("the answer of {} is longer than {limit} bytes", self.faults.host);
            return Err(AttemptError::never(Code::ModelAnswerInvalid, message));
        }
        Ok(Some(chunk.into()))
    }

    async fn whole(mut self, mut bytes: Vec<u8>) -> Result<Value> {
        while let Some(chunk) = self.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&bytes).map_err(|_| self.faults.nonsense("something that is not JSON"))
    }

    fn too_long(&self, _: TooLong) -> AttemptError {
        let limit = self.options.max_event_bytes;
        let message = format!("an event in the answer of {} is longer than {limit} bytes", self.faults.host);
        AttemptError::never(Code::ModelAnswerInvalid, message)
    }
}

/// As much of an error's body as is worth reading.
async fn beginning(mut response: Response) -> Vec<u8> {
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
    // A status without all of its text is still a status.
    drop(timeout(ERROR_TIMEOUT, read).await);
    bytes
}
