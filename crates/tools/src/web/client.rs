//! One fetch, from the first request to the body.

use std::{
    error::Error as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use remuda_domain::error::{Code, Error, Result};
use reqwest::{
    Client, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolving},
    header::{ACCEPT, CONTENT_TYPE, LOCATION},
    redirect::Policy,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::sync::OnceCell;

use super::{
    WebOptions,
    allowed::{bare, may_connect, normal},
    text::MediaType,
    url::{check_parts, upgraded},
};
use crate::arguments::field;

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Of a response over HTTP/2; HTTP/1 has a limit of its own.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
const AGENT: &str = concat!("Remuda/", env!("CARGO_PKG_VERSION"));
const WANTED: &str =
    "text/html, application/xhtml+xml, text/*, application/json, application/xml;q=0.9, */*;q=0.5";

/// Fetches within the rules.
#[derive(Debug)]
pub(crate) struct Fetcher {
    options: WebOptions,
    tls: OnceCell<ClientConfig>,
}

/// What came of a fetch.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Of the last request.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// Another host has it, and nobody has asked there.
    Elsewhere(String),
    Body {
        media_type: MediaType,
        bytes: Vec<u8>,
        truncated: bool,
    },
    /// Not text, and not read.
    Binary {
        media_type: MediaType,
        bytes: Option<u64>,
    },
}

impl Fetcher {
    pub(crate) fn new(options: WebOptions) -> Self {
        Self { options, tls: OnceCell::new() }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Fetches a URL. May be dropped anywhere.
    pub(crate) async fn fetch(&self, mut url: Url) -> Result<Fetched> {
        for _ in 0..=MAX_REDIRECTS {
            let (asked, response) = self.request(url).await?;
            let Some(target) = redirect(&asked, &response) else {
                return self.content(asked, response).await;
            };
            url = target?;
            if url.host_str().map(normal) != asked.host_str().map(normal) {
                let status = response.status();
                return Ok(Fetched { url: asked, status, content: Content::Elsewhere(url.into()) });
            }
        }
        Err(Error::new(Code::ToolFailed, format!("more than {MAX_REDIRECTS} redirects")).at(field("url")))
    }

    /// Sends one request to checked addresses. Says also what was asked for in the end.
    async fn request(&self, url: Url) -> Result<(Url, Response)> {
        check_parts(&url)?;
        let addresses = self.addresses(url.host_str().unwrap_or_default()).await?;
        let url = upgraded(url, &addresses, &self.options.allowed)?;
        let (host, port) =
            (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        // One bad address among good ones is reason enough: the name cannot be trusted.
        if !addresses.iter().all(|address| may_connect(&self.options.allowed, host, *address, port)) {
            // Not which address: that would tell of networks behind us.
            let message = format!("{host} on port {port} is not on the public web, and not allowed here");
            return Err(Error::new(Code::AddressNotAllowed, message).at(field("url")));
        }
        let client = client(self.tls().await?, Pinned { host: host.to_owned(), addresses })?;
        let sent = client.get(url.clone()).header(ACCEPT, WANTED).send().await;
        let response = sent.map_err(|error| failed(host, error))?;
        Ok((url, response))
    }

    /// The addresses of a host: looked up once for each request.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>> {
        let missing =
            || Error::new(Code::ToolFailed, format!("cannot find the host {host}")).at(field("url"));
        let addresses = match bare(host).parse() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = self.options.resolver.resolve(host).await;
                found.map_err(|error| missing().with_source(error))?
            }
        };
        if addresses.is_empty() { Err(missing()) } else { Ok(addresses) }
    }

    async fn content(&self, url: Url, mut response: Response) -> Result<Fetched> {
        let status = response.status();
        let declared = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = MediaType::parse(declared.unwrap_or_default());
        if !media_type.may_be_text() {
            let bytes = response.content_length();
            return Ok(Fetched { url, status, content: Content::Binary { media_type, bytes } });
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
        Ok(Fetched { url, status, content: Content::Body { media_type, bytes, truncated } })
    }

    async fn tls(&self) -> Result<ClientConfig> {
        self.tls.get_or_try_init(tls_config).await.cloned()
    }
}

/// Whom to trust, as the machine does. With its own cryptography, so that nobody has to install one first.
pub(super) async fn tls_config() -> Result<ClientConfig> {
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::internal("cannot prepare encrypted connections").with_source(error)
    };
    let certificates = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs);
    let certificates = certificates.await.map_err(|error| broken(error.into()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.certs);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let versions = builder.with_safe_default_protocol_versions().map_err(|error| broken(error.into()))?;
    let mut config = versions.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A client that speaks to nobody but the given addresses: no proxies, no redirects, no second look at the name.
fn client(tls: ClientConfig, to: Pinned) -> Result<Client> {
    let builder = plain_client(tls).dns_resolver(to);
    builder.build().map_err(|error| Error::internal("cannot make an HTTP client").with_source(error))
}

pub(super) fn plain_client(tls: ClientConfig) -> reqwest::ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .pool_max_idle_per_host(0)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .user_agent(AGENT)
}

/// Where a response sends us, if it does.
fn redirect(from: &Url, response: &Response) -> Option<Result<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let wrong = || Error::new(Code::ToolFailed, "the redirect leads to no web address").at(field("url"));
    let target = from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    Some(target.ok_or_else(wrong))
}

/// What a request failed of: the innermost cause says most.
fn failed(host: &str, error: reqwest::Error) -> Error {
    let error = error.without_url();
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|error| error.source()) {
        cause = Some(deeper);
    }
    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
    let cause: String = cause.chars().take(200).collect();
    Error::new(Code::ToolFailed, format!("cannot fetch from {host}: {cause}")).with_source(error)
}

/// Knows one name and its checked addresses.
#[derive(Clone, Debug)]
struct Pinned {
    host: String,
    addresses: Vec<IpAddr>,
}

impl reqwest::dns::Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (name.as_str() == self.host).then(|| self.addresses.clone());
        Box::pin(async move {
            let addresses = found.ok_or("asked for another host than the checked one")?;
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
