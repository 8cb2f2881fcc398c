//! Authentication: derives the [`Actor`] of a request from its API key.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_domain::{Code, Error, TenantId, error::Result, identity::Actor};
use remuda_store::Store;
use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, header::AUTHORIZATION};

use crate::{
    key_validity::{KeyValidity, WatchedKeys},
    keys,
};

/// How long a key is cached: a revoked key works no longer than this.
const CACHE_TTL: Duration = Duration::from_secs(5);
const CACHE_SIZE: usize = 10_000;

/// Actors by the hash of their key, each with its expiry.
type Cache = HashMap<[u8; 32], (Instant, Actor)>;

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
pub struct Authenticator {
    store: Arc<dyn Store>,
    policy: KeyPolicy,
    cache: Arc<Mutex<Cache>>,
    /// Keys of open streams.
    watched: Arc<WatchedKeys>,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").field("policy", &self.policy).finish_non_exhaustive()
    }
}

fn unauthenticated(message: &str) -> Error {
    Error::new(Code::Unauthenticated, message)
}

impl Authenticator {
    pub fn new(store: Arc<dyn Store>, policy: KeyPolicy) -> Self {
        Self { store, policy, cache: Arc::default(), watched: Arc::default() }
    }

    #[must_use]
    pub fn keys_required(&self) -> bool {
        matches!(self.policy, KeyPolicy::Required)
    }

    /// The caller of a request. A given key must be valid even where none is required.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Actor> {
        Ok(self.identify(headers).await?.0)
    }

    /// Authenticates the caller of a stream. The [`KeyValidity`] ends when the key does, while [`Authenticator::watch`]
    /// runs.
    pub async fn authenticate_stream(&self, headers: &HeaderMap) -> Result<(Actor, KeyValidity)> {
        let (actor, key) = self.identify(headers).await?;
        Ok((actor, key.map(|key| self.watched.watch(key)).unwrap_or_default()))
    }

    /// Rechecks the keys of open streams, each once per cache time. Never ends.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(CACHE_TTL).await;
            self.recheck_keys().await;
        }
    }

    /// Rechecks all keys of open streams once.
    pub async fn recheck_keys(&self) {
        for key in self.watched.keys() {
            match self.store.find_key(&key).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.cache.lock().remove(&key);
                    self.watched.end(&key);
                }
                // Open streams go on until the store reports their key as invalid.
                Err(error) => {
                    tracing::warn!(error = error.chain(), "rechecking API keys failed; retrying");
                    return;
                }
            }
        }
    }

    /// The caller, and the hash of the key if one was given.
    async fn identify(&self, headers: &HeaderMap) -> Result<(Actor, Option<[u8; 32]>)> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (value, more) = (values.next(), values.next());
        if more.is_some() {
            return Err(unauthenticated("expected one authorization header"));
        }
        let Some(value) = value else {
            return match &self.policy {
                KeyPolicy::Required => {
                    Err(unauthenticated("expected an API key: authorization: Bearer rmd_…"))
                }
                KeyPolicy::Optional { tenant } => Ok((Actor::local(*tenant), None)),
            };
        };
        let secret = value
            .to_str()
            .ok()
            .and_then(bearer)
            .ok_or_else(|| unauthenticated("expected `Bearer` and an API key"))?;
        let key = keys::hash(secret);
        Ok((self.look_up(key).await?, Some(key)))
    }

    async fn look_up(&self, hash: [u8; 32]) -> Result<Actor> {
        let now = Instant::now();
        if let Some((until, actor)) = self.cache.lock().get(&hash)
            && *until > now
        {
            return Ok(actor.clone());
        }
        let key = self.store.find_key(&hash).await?;
        let key = key.ok_or_else(|| unauthenticated("the API key is unknown, expired or revoked"))?;
        let actor = Actor { tenant: key.tenant, subject: key.name, scopes: key.scopes };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_SIZE {
            cache.retain(|_, (until, _)| *until > now);
        }
        if cache.len() < CACHE_SIZE {
            cache.insert(hash, (now + CACHE_TTL, actor.clone()));
        }
        Ok(actor)
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
