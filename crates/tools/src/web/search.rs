//! Searching the web.

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

/// Of a provider's answer.
const MAX_BYTES: usize = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Someone who searches.
#[async_trait]
pub trait SearchProvider: fmt::Debug + Send + Sync + 'static {
    /// Finds pages, best first. More than were asked for does no harm; what is not wanted is sorted out by the caller.
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

/// A SearXNG instance, or anything that answers like one: `GET {base}/search?q=…&format=json`.
#[derive(Debug)]
pub struct SearxNg {
    search: Url,
    header: Option<(HeaderName, HeaderValue)>,
    tls: OnceCell<ClientConfig>,
}

impl SearxNg {
    /// `base` is the operator's choice, so it may be anywhere.
    pub fn new(base: &str) -> Result<Self> {
        let wrong = || Error::invalid("tools.search.url", "expected an http or https URL");
        let mut search = Url::parse(base).map_err(|_| wrong())?;
        if !matches!(search.scheme(), "http" | "https") {
            return Err(wrong());
        }
        search.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().push("search");
        search.set_query(None);
        Ok(Self { search, header: None, tls: OnceCell::new() })
    }

    /// Sends a header with every request, for example a key.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let wrong = |_| Error::invalid("tools.search.header", "expected a header name and value");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        let mut value = HeaderValue::from_str(value).map_err(|error| wrong(error.to_string()))?;
        value.set_sensitive(true);
        self.header = Some((name, value));
        Ok(self)
    }

    async fn ask(&self, query: &SearchQuery) -> Result<Vec<u8>> {
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
        let body = self.ask(query).await?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| {
            Error::unavailable(
                "the search provider does not answer with JSON results (is its json format enabled?)",
            )
            .with_source(error)
        })?;
        let hit = |found: Found| SearchHit {
            title: found.title.unwrap_or_default(),
            url: found.url,
            snippet: found.content.unwrap_or_default(),
        };
        Ok(answer.results.into_iter().map(hit).collect())
    }
}

/// What we need of an answer, which holds more.
#[derive(Deserialize)]
struct Answer {
    results: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    url: String,
    title: Option<String>,
    content: Option<String>,
}
