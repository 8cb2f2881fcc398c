//! Builds HTTP clients.

use std::sync::Arc;

use remuda_domain::error::{Error, Result};
use reqwest::{Client, redirect::Policy};
use rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::address_rule::EndpointRule;
use crate::ModelOptions;

const AGENT: &str = concat!("Remuda/", env!("CARGO_PKG_VERSION"));
const MAX_IDLE_CONNECTIONS: usize = 8;
const IDLE_CONNECTION_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// The TLS configuration: the system's root certificates, and an explicit crypto provider, so that no process-wide
/// default has to be installed first.
pub(crate) async fn tls_config() -> Result<ClientConfig> {
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

/// A client without proxies, redirects and compression. Compression would delay the pieces of a streamed response.
pub(crate) fn client(
    tls: ClientConfig,
    options: &ModelOptions,
    rule: Option<EndpointRule>,
) -> Result<Client> {
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .no_gzip()
        .connect_timeout(options.connect_timeout)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .user_agent(AGENT);
    if let Some(rule) = rule {
        builder = builder.dns_resolver(rule);
    }
    builder.build().map_err(|error| Error::internal("cannot make an HTTP client").with_source(error))
}
