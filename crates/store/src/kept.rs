//! A look at what many want to see and what is dear to look at.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use remuda_domain::{Error, error::Result};
use tokio::{sync::Semaphore, time::Instant};

/// How long a look is shown to everybody who asks.
const KEEP: Duration = Duration::from_secs(1);
/// A look that takes long is kept for longer, so that looking never takes more than a tenth of the time.
const KEEP_TIMES: u32 = 10;
const KEEP_MOST: Duration = Duration::from_secs(30);

/// The last look, which is the same for everybody.
#[derive(Debug)]
pub struct Kept<T> {
    last: Mutex<Option<(Instant, Arc<T>)>>,
    /// One look at a time.
    turn: Semaphore,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { last: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl<T> Kept<T> {
    fn fresh(&self) -> Option<Arc<T>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, seen)| Arc::clone(seen))
    }

    /// The last look, or what `look` sees if that is too old. A look that fails is not kept.
    pub async fn get(&self, look: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        if let Some(seen) = self.fresh() {
            return Ok(seen);
        }
        let closed = |error| Error::internal("nobody looks any more").with_source(error);
        let _turn = self.turn.acquire().await.map_err(closed)?;
        // Whoever had the turn before may have looked for this one too.
        if let Some(seen) = self.fresh() {
            return Ok(seen);
        }
        let begun = Instant::now();
        let seen = Arc::new(look.await?);
        let keep = (begun.elapsed() * KEEP_TIMES).clamp(KEEP, KEEP_MOST);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((begun + keep, Arc::clone(&seen)));
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn a_look_is_shared_and_a_failed_one_is_not() {
        let kept = Kept::default();
        assert!(kept.get(ready(Err(Error::internal("blind")))).await.is_err());
        assert_eq!(*kept.get(ready(Ok(1))).await.unwrap(), 1);
        assert_eq!(*kept.get(ready(Ok(2))).await.unwrap(), 1);
        *kept.last.lock().unwrap() = Some((Instant::now(), Arc::new(1)));
        assert_eq!(*kept.get(ready(Ok(3))).await.unwrap(), 3, "an old one is not shown");
    }
}
