//! Web search providers.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::{Error, Result};
use remuda_egress::{plain_client, tls_config};
use reqwest::{
    Url,
    header::{HeaderName, HeaderValue},
};
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::sync::OnceCell;

/// Size limit of a provider's response.
const MAX_BYTES: usize = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A web search service.
#[async_trait]
pub trait SearchProvider: fmt::Debug + Send + Sync + 'static {
    /// Finds pages, best first. May return more than requested; the caller filters and truncates.
    async fn search(&self, query: &SearchQuery) -> Result<Vec<SearchHit>>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchQuery {
    pub text: String,
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    pub title: String,
    pub url: String,
    pub snippet: String,
}

/// A SearXNG instance, or a compatible service: `GET {base}/search?q=…&format=json`.
#[derive(Debug)]
pub struct SearxNg {
    search: Url,
    header: Option<(HeaderName, HeaderValue)>,
    tls: OnceCell<ClientConfig>,
}

impl SearxNg {
    /// `base` is configured by the operator, so the egress rules do not apply.
    pub fn new(base: &str) -> Result<Self> {
        let invalid = || Error::invalid("tools.search.url", "expected an http or https URL");
        let mut search = Url::parse(base).map_err(|_| invalid())?;
        if !matches!(search.scheme(), "http" | "https") {
            return Err(invalid());
        }
        search.path_segments_mut().map_err(|()| invalid())?.pop_if_empty().push("search");
        search.set_query(None);
        Ok(Self { search, header: None, tls: OnceCell::new() })
    }

    /// Sends a header with every request, for example an API key.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let invalid = |_| Error::invalid("tools.search.header", "expected a header name and value");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| invalid(error.to_string()))?;
        let mut value = HeaderValue::from_str(value).map_err(|error| invalid(error.to_string()))?;
        value.set_sensitive(true);
        self.header = Some((name, value));
        Ok(self)
    }

    async fn request_results(&self, query: &SearchQuery) -> Result<Vec<u8>> {
        let unavailable = |error: reqwest::Error| {
            Error::unavailable("the search provider does not answer").with_source(error.without_url())
        };
        let tls = self.tls.get_or_try_init(tls_config).await?.clone();
        let client = plain_client(tls).timeout(TIMEOUT).build().map_err(unavailable)?;
        let mut url = self.search.clone();
        url.query_pairs_mut().append_pair("q", &query.text).append_pair("format", "json");
        let mut request = client.get(url);
        if let Some((name, value)) = &self.header {
            request = request.header(name, value);
        }
        let mut response = request.send().await.map_err(unavailable)?;
        if !response.status().is_success() {
            let message = format!("the search provider answers with status {}", response.status().as_u16());
            return Err(Error::unavailable(message));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(Error::unavailable("the search provider answers too much"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

#[async_trait]
impl SearchProvider for SearxNg {
    async fn search(&self, query: &SearchQuery) -> Result<Vec<SearchHit>> {
        let body = self.request_results(query).await?;
        let response: SearxNgResponse = serde_json::from_slice(&body).map_err(|error| {
            Error::unavailable(
                "the search provider does not answer with JSON results (is its json format enabled?)",
            )
            .with_source(error)
        })?;
        let hit = |found: SearxNgHit| SearchHit {
            title: found.title.unwrap_or_default(),
            url: found.url,
            snippet: found.content.unwrap_or_default(),
        };
        Ok(response.results.into_iter().map(hit).collect())
    }
}

/// The used fields of a response.
#[derive(Deserialize)]
struct SearxNgResponse {
    results: Vec<SearxNgHit>,
}

#[derive(Deserialize)]
struct SearxNgHit {
    url: String,
    title: Option<String>,
    content: Option<String>,
}
