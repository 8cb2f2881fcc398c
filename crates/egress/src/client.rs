//! HTTP clients that connect to checked addresses only.

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
/// Limit for HTTP/2 responses; HTTP/1 has a built-in limit.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
const AGENT: &str = concat!("Remuda/", env!("CARGO_PKG_VERSION"));

/// TLS configuration with the system's root certificates. It brings its own crypto provider, so that no
/// process-wide default has to be installed.
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

/// A client builder without proxies and redirects.
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

/// A client pinned to the given addresses of a host; it does not resolve the name again. Keeps one idle
/// connection for the next request.
pub(crate) fn pinned_client(tls: ClientConfig, host: String, addresses: Vec<IpAddr>) -> Result<Client> {
    let builder =
        plain_client(tls).dns_resolver(PinnedResolver { host, addresses }).pool_max_idle_per_host(1);
    builder.build().map_err(|error| Error::internal("cannot make an HTTP client").with_source(error))
}

/// The innermost cause of a failed request, which is the most specific one, truncated.
#[must_use]
pub fn root_cause(error: &reqwest::Error) -> String {
    const MAX_CHARS: usize = 200;
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|error| error.source()) {
        cause = Some(deeper);
    }
    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
    cause.chars().take(MAX_CHARS).collect()
}

/// Resolver that knows one host and its checked addresses.
#[derive(Clone, Debug)]
struct PinnedResolver {
    host: String,
    addresses: Vec<IpAddr>,
}

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let addresses = (name.as_str() == self.host).then(|| self.addresses.clone());
        Box::pin(async move {
            let addresses = addresses.ok_or("expected the checked host, got another one")?;
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
