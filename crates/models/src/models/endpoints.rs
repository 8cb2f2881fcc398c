//! A cache of HTTP clients and circuit breakers, one of each per endpoint.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    content::ContentHash,
    error::Result,
    model::{ModelDefinition, Registry},
};
use reqwest::{Client, Url, header::HeaderMap};
use rustls::ClientConfig;
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    ModelOptions,
    breaker::Breaker,
    http::{self, EndpointRule, Target},
    provider_error::{ErrorMapper, Secrets},
};

/// The most recently used endpoints.
#[derive(Debug)]
pub(super) struct Endpoints {
    options: Arc<ModelOptions>,
    tls: OnceCell<ClientConfig>,
    cached: Mutex<HashMap<Identity, Endpoint>>,
}

/// Hash of a URL and its key: an endpoint may accept another key.
type Identity = ContentHash;

#[derive(Clone, Debug)]
struct Endpoint {
    client: Client,
    breaker: Arc<Breaker>,
    last_used: Instant,
}

impl Endpoints {
    pub(super) fn new(options: Arc<ModelOptions>) -> Self {
        Self { options, tls: OnceCell::new(), cached: Mutex::default() }
    }

    /// Prepares a call of a model at a URL.
    pub(super) async fn target(&self, model: &ModelDefinition, url: Url) -> Result<(Arc<Breaker>, Target)> {
        let key = model.key.as_ref().map_or("", |key| key.expose());
        let address_rule =
            self.options.workspace_rule.as_ref().filter(|_| model.reference.registry == Registry::Workspace);
        let rule = address_rule.map(|rule| EndpointRule::new(rule, &url));
        if let Some(rule) = &rule {
            rule.check().await?;
        }
        // Restricted and unrestricted models do not share connections.
        let identity = ContentHash::of(&format!("{url}\n{key}\n{}", rule.is_some()));
        let Endpoint { client, breaker, .. } = self.endpoint(identity, rule).await?;
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        let host = format!("{}{port}", url.host_str().unwrap_or_default());
        let errors = ErrorMapper { host, secrets: Secrets::of(model, &url) };
        let options = Arc::clone(&self.options);
        Ok((breaker, Target { client, url, headers: HeaderMap::new(), errors, options }))
    }

    async fn endpoint(&self, identity: Identity, rule: Option<EndpointRule>) -> Result<Endpoint> {
        if let Some(endpoint) = self.cached().get_mut(&identity) {
            endpoint.last_used = Instant::now();
            return Ok(endpoint.clone());
        }
        let tls = self.tls.get_or_try_init(http::tls_config).await?.clone();
        let client = http::client(tls, &self.options, rule)?;
        let breaker = Arc::new(Breaker::new(self.options.breaker_failures, self.options.breaker_open));
        let mut cached = self.cached();
        if cached.len() >= self.options.max_endpoints.max(1) && !cached.contains_key(&identity) {
            let oldest =
                cached.iter().min_by_key(|(_, endpoint)| endpoint.last_used).map(|(identity, _)| *identity);
            oldest.map(|oldest| cached.remove(&oldest));
        }
        // If two calls raced, both use the endpoint that was inserted first.
        Ok(cached.entry(identity).or_insert(Endpoint { client, breaker, last_used: Instant::now() }).clone())
    }

    fn cached(&self) -> MutexGuard<'_, HashMap<Identity, Endpoint>> {
        self.cached.lock()
    }
}
