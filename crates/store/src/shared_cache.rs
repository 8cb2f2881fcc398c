//! A single-flight cache for expensive reads that many callers share.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_domain::{Error, error::Result};
use tokio::{sync::Semaphore, time::Instant};

/// The shortest time a value is served from the cache.
const MIN_TTL: Duration = Duration::from_secs(1);
/// A slow load is cached this many times longer than it took, so that loading never takes more than a tenth of the
/// time.
const TTL_FACTOR: u32 = 10;
const MAX_TTL: Duration = Duration::from_secs(30);

/// Caches one value for all callers. At most one load runs at a time; callers that arrive during a load wait for it and
/// share its result.
#[derive(Debug)]
pub struct SharedCache<T> {
    /// The value and when it expires.
    cached: Mutex<Option<(Instant, Arc<T>)>>,
    /// Permits one load at a time.
    loading: Semaphore,
}

impl<T> Default for SharedCache<T> {
    fn default() -> Self {
        Self { cached: Mutex::default(), loading: Semaphore::new(1) }
    }
}

impl<T> SharedCache<T> {
    fn fresh(&self) -> Option<Arc<T>> {
        let cached = self.cached.lock();
        cached.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, value)| Arc::clone(value))
    }

    /// Returns the cached value, or runs `load` if the value has expired. A failed load is not cached.
    pub async fn get(&self, load: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        if let Some(value) = self.fresh() {
            return Ok(value);
        }
        let closed = |error| Error::internal("the cache's load semaphore is closed").with_source(error);
        let _permit = self.loading.acquire().await.map_err(closed)?;
        // The previous permit holder may have loaded the value in the meantime.
        if let Some(value) = self.fresh() {
            return Ok(value);
        }
        let begun = Instant::now();
        let value = Arc::new(load.await?);
        let ttl = (begun.elapsed() * TTL_FACTOR).clamp(MIN_TTL, MAX_TTL);
        *self.cached.lock() = Some((begun + ttl, Arc::clone(&value)));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn value_is_shared_until_it_expires_and_failures_are_not_cached() {
        let cache = SharedCache::default();
        assert!(cache.get(ready(Err(Error::internal("load failed")))).await.is_err());
        assert_eq!(*cache.get(ready(Ok(1))).await.unwrap(), 1);
        assert_eq!(*cache.get(ready(Ok(2))).await.unwrap(), 1);
        *cache.cached.lock() = Some((Instant::now(), Arc::new(1)));
        assert_eq!(*cache.get(ready(Ok(3))).await.unwrap(), 3, "an expired value is reloaded");
    }
}
