//! Clients that speak to nobody but checked addresses.

use std::{
    error::Error as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use remuda_domain::error::{Error, Result};
use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Of a response over HTTP/2; HTTP/1 has a limit of its own.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
const AGENT: &str = concat!("Remuda/", env!("CARGO_PKG_VERSION"));

/// Whom to trust, as the machine does. With its own cryptography, so that nobody has to install one first.
pub async fn tls_config() -> Result<ClientConfig> {
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

/// No proxies, no redirects.
pub fn plain_client(tls: ClientConfig) -> ClientBuilder {
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

/// A client that speaks to the given addresses of a host and takes no second look at its name. It keeps one connection for
/// the next request.
pub(crate) fn pinned_client(tls: ClientConfig, host: String, addresses: Vec<IpAddr>) -> Result<Client> {
    let builder = plain_client(tls).dns_resolver(Pinned { host, addresses }).pool_max_idle_per_host(1);
    builder.build().map_err(|error| Error::internal("cannot make an HTTP client").with_source(error))
}

/// What a request failed of: the innermost cause says most.
#[must_use]
pub fn cause(error: &reqwest::Error) -> String {
    const MAX_CHARS: usize = 200;
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|error| error.source()) {
        cause = Some(deeper);
    }
    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
    cause.chars().take(MAX_CHARS).collect()
}

/// Knows one name and its checked addresses.
#[derive(Clone, Debug)]
struct Pinned {
    host: String,
    addresses: Vec<IpAddr>,
}

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (name.as_str() == self.host).then(|| self.addresses.clone());
        Box::pin(async move {
            let addresses = found.ok_or("asked for another host than the checked one")?;
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
