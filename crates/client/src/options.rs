//! Client options.

use std::time::Duration;

use remuda_domain::{Error, error::Result, trace::TraceContext};
use secrecy::{ExposeSecret as _, SecretString};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// How to reach a server, and how long to retry.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `http://host:port`, or `https://…` with the root certificates of the operating system.
    pub endpoint: String,
    /// Address of `StreamService`. If missing, the server is asked once.
    pub stream_endpoint: Option<String>,
    pub api_key: Option<SecretString>,
    /// Certificates of authorities in PEM format, trusted besides those of the operating system.
    pub ca: Option<Vec<u8>>,
    /// Trace context of requests, and of the runs that they submit.
    pub trace: Option<TraceContext>,
    pub connect_timeout: Duration,
    /// Timeout of one call. Waiting for a run and following events are not limited by it.
    pub request_timeout: Duration,
    /// How long `follow`, `wait_until_finished` and an idempotent `submit` retry without progress.
    pub give_up_after: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:7777".to_owned(),
            stream_endpoint: None,
            api_key: None,
            ca: None,
            trace: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            give_up_after: Duration::from_secs(60),
        }
    }
}

impl ClientOptions {
    /// A channel that connects with the first call, and reconnects after every loss.
    pub(crate) fn channel(&self, field: &str, url: &str) -> Result<Channel> {
        let bad = || Error::invalid(field, "expected a URL such as http://127.0.0.1:7777");
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| bad().with_source(error))?;
        let uri = endpoint.uri();
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        let mut endpoint = endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            // A peer that vanished is noticed within half a minute, also on an idle stream.
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        if secure {
            let mut tls = ClientTlsConfig::new().with_native_roots();
            let field = match &self.ca {
                Some(pem) => {
                    tls = tls.ca_certificate(Certificate::from_pem(pem));
                    "ca"
                }
                None => field,
            };
            endpoint = endpoint
                .tls_config(tls)
                .map_err(|error| Error::invalid(field, "TLS could not be set up").with_source(error))?;
        }
        Ok(endpoint.connect_lazy())
    }

    /// The value of the `traceparent` header.
    pub(crate) fn traceparent(&self) -> Option<MetadataValue<Ascii>> {
        self.trace?.to_string().parse().ok()
    }

    /// The value of the `authorization` header.
    pub(crate) fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>> {
        // An empty environment variable means no key.
        let Some(key) = self.api_key.as_ref().filter(|key| !key.expose_secret().is_empty()) else {
            return Ok(None);
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", key.expose_secret())
            .parse()
            .map_err(|_| Error::invalid("api_key", "expected visible ASCII characters"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}
