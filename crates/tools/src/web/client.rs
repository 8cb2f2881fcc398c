//! Fetches a URL: requests, redirects and the body.

use std::{sync::Arc, time::Duration};

use remuda_domain::error::{Code, Error, Result};
use remuda_egress::{Egress, PinnedTarget, normalize_host};
use reqwest::{
    Response, StatusCode, Url,
    header::{ACCEPT, CONTENT_TYPE, LOCATION},
};

use super::{URL_FIELD, WebOptions, text::MediaType};

const MAX_REDIRECTS: usize = 5;
const ACCEPTED_TYPES: &str =
    "text/html, application/xhtml+xml, text/*, application/json, application/xml;q=0.9, */*;q=0.5";

/// Fetches URLs within the egress rules.
#[derive(Debug)]
pub(crate) struct Fetcher {
    options: WebOptions,
    egress: Egress,
}

/// Result of a fetch.
#[derive(Debug)]
pub(crate) struct FetchResult {
    /// URL of the last request.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// A redirect to another host, which was not followed.
    RedirectToOtherHost(String),
    Body {
        media_type: MediaType,
        bytes: Vec<u8>,
        truncated: bool,
    },
    /// Not text; the body was not read.
    Binary {
        media_type: MediaType,
        bytes: Option<u64>,
    },
}

impl Fetcher {
    pub(crate) fn new(options: WebOptions) -> Self {
        let resolver = Arc::clone(&options.resolver);
        Self { egress: Egress::new(URL_FIELD, options.allowed.clone(), resolver), options }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Fetches a URL. Safe to drop at any point.
    pub(crate) async fn fetch(&self, mut url: Url) -> Result<FetchResult> {
        for _ in 0..=MAX_REDIRECTS {
            let (requested, response) = self.request(url).await?;
            let Some(target) = redirect(&requested, &response) else {
                return self.content(requested, response).await;
            };
            url = target?;
            if url.host_str().map(normalize_host) != requested.host_str().map(normalize_host) {
                let status = response.status();
                return Ok(FetchResult {
                    url: requested,
                    status,
                    content: Content::RedirectToOtherHost(url.into()),
                });
            }
        }
        Err(Error::new(Code::ToolFailed, format!("more than {MAX_REDIRECTS} redirects")).at(URL_FIELD))
    }

    /// Sends one request to checked addresses. Also returns the URL that was requested.
    async fn request(&self, url: Url) -> Result<(Url, Response)> {
        let PinnedTarget { url, client } = self.egress.open(url).await.map_err(as_tool_failure)?;
        let sent = client.get(url.clone()).header(ACCEPT, ACCEPTED_TYPES).send().await;
        let response = sent.map_err(|error| failed(url.host_str().unwrap_or_default(), error))?;
        Ok((url, response))
    }

    async fn content(&self, url: Url, mut response: Response) -> Result<FetchResult> {
        let status = response.status();
        let declared = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = MediaType::parse(declared.unwrap_or_default());
        if !media_type.may_be_text() {
            let bytes = response.content_length();
            return Ok(FetchResult { url, status, content: Content::Binary { media_type, bytes } });
        }
        let (mut bytes, mut truncated) = (Vec::new(), false);
        let host = url.host_str().unwrap_or_default();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(host, error))? {
            let room = self.options.max_bytes - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                truncated = true;
                break;
            }
        }
        Ok(FetchResult { url, status, content: Content::Body { media_type, bytes, truncated } })
    }
}

/// The redirect target of a response, if it is a redirect.
fn redirect(from: &Url, response: &Response) -> Option<Result<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let invalid = || Error::new(Code::ToolFailed, "the redirect leads to no web address").at(URL_FIELD);
    let target = from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    Some(target.ok_or_else(invalid))
}

fn failed(host: &str, error: reqwest::Error) -> Error {
    let error = error.without_url();
    let message = format!("cannot fetch from {host}: {}", remuda_egress::root_cause(&error));
    Error::new(Code::ToolFailed, message).with_source(error)
}

/// For the model an unknown host is a failed call, not an outage of a Remuda component.
fn as_tool_failure(error: Error) -> Error {
    if error.code() != Code::Unavailable {
        return error;
    }
    Error::new(Code::ToolFailed, error.message()).at(URL_FIELD).with_source(error)
}
