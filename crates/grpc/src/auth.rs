//! Authentication: derives the [`Actor`] of a request from its API key.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_domain::{TenantId, error::Result, identity::Actor};
use remuda_store::Store;
use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, header::AUTHORIZATION};

use crate::{
    body_budget::{BodyBudget, TenantMemory},
    client_address::client_address,
    failed_auth::{FailedAuth, Failure},
    key_validity::{KeyValidity, WatchedKeys},
    keys, request_state,
};

/// How long a key is cached: a revoked key works no longer than this.
const CACHE_TTL: Duration = Duration::from_secs(5);
const CACHE_SIZE: usize = 10_000;

/// Callers by the hash of their key, each with its expiry. A caller stays after it, because its key is known.
type Cache = HashMap<[u8; 32], (Instant, Arc<Caller>)>;

/// Who sent a request.
#[derive(Debug)]
pub(crate) struct Caller {
    actor: Actor,
    /// The memory for bodies of its tenant, or of operators.
    memory: Arc<TenantMemory>,
    /// The hash of the key if there is one, and the keys that are rechecked.
    key: Option<([u8; 32], Arc<WatchedKeys>)>,
}

impl Caller {
    pub(crate) fn memory(&self) -> &Arc<TenantMemory> {
        &self.memory
    }

    /// Ends when the key does, while [`Authenticator::watch`] runs.
    pub(crate) fn validity(&self) -> KeyValidity {
        self.key.as_ref().map(|(hash, watched)| watched.watch(*hash)).unwrap_or_default()
    }
}

/// Limits of authentication and of bodies.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Memory for the bodies of all requests in flight.
    pub body_memory: usize,
    /// The same for each tenant.
    pub body_memory_per_tenant: usize,
    /// Longest pause between two pieces of a body.
    pub body_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            body_memory: 512 << 20,
            body_memory_per_tenant: 64 << 20,
            body_timeout: Duration::from_secs(20),
            trusted_proxies: 0,
        }
    }
}

/// Whether requests need a key.
#[derive(Clone, Debug)]
pub enum KeyPolicy {
    Required,
    /// Requests without a key act for this tenant, and as operator. Only for a server on loopback.
    Optional {
        tenant: TenantId,
    },
}

/// Authenticates callers. Cheap to clone.
#[derive(Clone)]
pub struct Authenticator(Arc<Shared>);

struct Shared {
    store: Arc<dyn Store>,
    policy: KeyPolicy,
    /// The caller of requests without a key, if none is required.
    local: Option<Arc<Caller>>,
    cache: Mutex<Cache>,
    failed: FailedAuth,
    /// Keys of open streams and of requests that wait.
    watched: Arc<WatchedKeys>,
    budget: BodyBudget,
    limits: RequestLimits,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").field("policy", &self.0.policy).finish_non_exhaustive()
    }
}

impl Authenticator {
    pub fn new(store: Arc<dyn Store>, policy: KeyPolicy) -> Self {
        Self::with_limits(store, policy, RequestLimits::default())
    }

    pub fn with_limits(store: Arc<dyn Store>, policy: KeyPolicy, limits: RequestLimits) -> Self {
        let budget = BodyBudget::new(limits.body_memory, limits.body_memory_per_tenant);
        budget.export();
        let local = match &policy {
            KeyPolicy::Required => None,
            KeyPolicy::Optional { tenant } => {
                let memory = budget.of_tenant(Some(*tenant));
                Some(Arc::new(Caller { actor: Actor::local(*tenant), memory, key: None }))
            }
        };
        let (cache, failed, watched) = (Mutex::default(), FailedAuth::new(), Arc::default());
        Self(Arc::new(Shared { store, policy, local, cache, failed, watched, budget, limits }))
    }

    #[must_use]
    pub fn keys_required(&self) -> bool {
        matches!(self.0.policy, KeyPolicy::Required)
    }

    pub(crate) fn budget(&self) -> &BodyBudget {
        &self.0.budget
    }

    pub(crate) fn limits(&self) -> &RequestLimits {
        &self.0.limits
    }

    /// The caller of a request. A given key must be valid even where none is required.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Actor> {
        Ok(self.identify(headers).await?.actor.clone())
    }

    /// Authenticates the caller of a stream. The [`KeyValidity`] ends when the key does, while [`Authenticator::watch`]
    /// runs.
    pub async fn authenticate_stream(&self, headers: &HeaderMap) -> Result<(Actor, KeyValidity)> {
        let caller = self.identify(headers).await?;
        Ok((caller.actor.clone(), caller.validity()))
    }

    /// Rechecks the keys of open streams and of waiting requests, each once per cache time. Never ends.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(CACHE_TTL).await;
            self.recheck_keys().await;
        }
    }

    /// Rechecks all these keys once.
    pub async fn recheck_keys(&self) {
        let Shared { store, cache, watched, .. } = &*self.0;
        for key in watched.keys() {
            match store.find_key(&key).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    cache.lock().remove(&key);
                    watched.end(&key);
                }
                // Open streams go on until the store reports their key as invalid.
                Err(error) => {
                    tracing::warn!(error = error.chain(), "rechecking API keys failed; retrying");
                    return;
                }
            }
        }
    }

    /// The caller of a request; the one that was found first if it is the current request.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Arc<Caller>> {
        if let Some(caller) = request_state::caller() {
            return Ok(caller);
        }
        let fail = |failure, message| Err(self.0.failed.record(self.client(headers), failure, message));
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let caller = match (values.next(), values.next(), &self.0.local) {
            (_, Some(_), _) => return fail(Failure::Malformed, "expected one authorization header"),
            (None, None, None) => {
                return fail(Failure::Missing, "expected an API key: authorization: Bearer rmd_…");
            }
            (None, None, Some(local)) => Arc::clone(local),
            (Some(value), None, _) => match value.to_str().ok().and_then(bearer) {
                Some(secret) => self.look_up(keys::hash(secret), headers).await?,
                None => return fail(Failure::Malformed, "expected `Bearer` and an API key"),
            },
        };
        request_state::set_caller(&caller);
        Ok(caller)
    }

    fn client(&self, headers: &HeaderMap) -> std::net::IpAddr {
        client_address(request_state::peer(), headers, self.0.limits.trusted_proxies)
    }

    async fn look_up(&self, hash: [u8; 32], headers: &HeaderMap) -> Result<Arc<Caller>> {
        let Shared { store, cache, failed, watched, budget, .. } = &*self.0;
        let now = Instant::now();
        let known = match cache.lock().get(&hash) {
            Some((until, caller)) if *until > now => return Ok(Arc::clone(caller)),
            found => found.is_some(),
        };
        // Lookups of keys that were valid before are not limited, whatever else comes from their address.
        let permit = if known { None } else { failed.permit_lookup(self.client(headers)).await? };
        let key = store.find_key(&hash).await?;
        drop(permit);
        let Some(key) = key else {
            cache.lock().remove(&hash);
            let message = "the API key is unknown, expired or revoked";
            return Err(failed.record(self.client(headers), Failure::Unknown(&hash), message));
        };
        let actor = Actor { tenant: key.tenant, subject: key.name, scopes: key.scopes };
        let memory = budget.of_tenant(actor.tenant);
        let caller = Arc::new(Caller { actor, memory, key: Some((hash, Arc::clone(watched))) });
        let mut cache = cache.lock();
        if cache.len() >= CACHE_SIZE {
            cache.retain(|_, (until, _)| *until > now);
        }
        if cache.len() < CACHE_SIZE || cache.contains_key(&hash) {
            cache.insert(hash, (now + CACHE_TTL, Arc::clone(&caller)));
        }
        Ok(caller)
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(' ')?;
    let secret = secret.trim();
    let fits = scheme.eq_ignore_ascii_case("bearer") && !secret.is_empty() && secret.len() <= keys::MAX_LEN;
    fits.then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_of_sane_length_are_read() {
        assert_eq!(bearer("Bearer rmd_x"), Some("rmd_x"));
        assert_eq!(bearer("bearer  rmd_x "), Some("rmd_x"));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", &format!("Bearer {}", "x".repeat(300))] {
            assert_eq!(bearer(bad), None, "{bad:?}");
        }
    }
}
