//! Connections and breakers, one of each per endpoint.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

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
    failure::{Faults, Secrets},
    http::{self, Gate, Target},
};

/// The endpoints that were used last.
#[derive(Debug)]
pub(super) struct Endpoints {
    options: Arc<ModelOptions>,
    tls: OnceCell<ClientConfig>,
    known: Mutex<HashMap<Identity, Endpoint>>,
}

/// An address and the key that opens it, hashed: another key may be welcome where this one is not.
type Identity = ContentHash;

#[derive(Clone, Debug)]
struct Endpoint {
    client: Client,
    breaker: Arc<Breaker>,
    used: Instant,
}

impl Endpoints {
    pub(super) fn new(options: Arc<ModelOptions>) -> Self {
        Self { options, tls: OnceCell::new(), known: Mutex::default() }
    }

    /// What is needed to ask a model at an address.
    pub(super) async fn target(&self, model: &ModelDefinition, url: Url) -> Result<(Arc<Breaker>, Target)> {
        let key = model.key.as_ref().map_or("", |key| key.expose());
        let ruled =
            self.options.workspace_rule.as_ref().filter(|_| model.reference.registry == Registry::Workspace);
        let gate = ruled.map(|rule| Gate::new(rule, &url));
        if let Some(gate) = &gate {
            gate.check().await?;
        }
        // Whoever may go anywhere does not share connections with who may not.
        let identity = ContentHash::of(&format!("{url}\n{key}\n{}", gate.is_some()));
        let Endpoint { client, breaker, .. } = self.endpoint(identity, gate).await?;
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        let host = format!("{}{port}", url.host_str().unwrap_or_default());
        let faults = Faults { host, secrets: Secrets::of(model, &url) };
        let options = Arc::clone(&self.options);
        Ok((breaker, Target { client, url, headers: HeaderMap::new(), faults, options }))
    }

    async fn endpoint(&self, identity: Identity, gate: Option<Gate>) -> Result<Endpoint> {
        if let Some(endpoint) = self.known().get_mut(&identity) {
            endpoint.used = Instant::now();
            return Ok(endpoint.clone());
        }
        let tls = self.tls.get_or_try_init(http::tls_config).await?.clone();
        let client = http::client(tls, &self.options, gate)?;
        let breaker = Arc::new(Breaker::new(self.options.breaker_failures, self.options.breaker_open));
        let mut known = self.known();
        if known.len() >= self.options.max_endpoints.max(1) && !known.contains_key(&identity) {
            let oldest =
                known.iter().min_by_key(|(_, endpoint)| endpoint.used).map(|(identity, _)| *identity);
            oldest.map(|oldest| known.remove(&oldest));
        }
        // Two may have come here at once; the first one's is everybody's.
        Ok(known.entry(identity).or_insert(Endpoint { client, breaker, used: Instant::now() }).clone())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Identity, Endpoint>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
