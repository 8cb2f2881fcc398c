//! Limits how often something happens per second.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Allows `limit` events in any period of a second that begins with the first of them.
#[derive(Debug)]
pub(super) struct RateLimit {
    limit: u32,
    period: Mutex<Option<(Instant, u32)>>,
}

impl RateLimit {
    pub(super) const fn per_second(limit: u32) -> Self {
        Self { limit, period: Mutex::new(None) }
    }

    pub(super) fn allow(&self) -> bool {
        let (now, mut period) = (Instant::now(), self.period.lock());
        let (_, count) = match &mut *period {
            Some(current) if now.duration_since(current.0) < Duration::from_secs(1) => current,
            other => other.insert((now, 0)),
        };
        *count = count.saturating_add(1);
        *count <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limit_applies_to_each_second() {
        let limit = RateLimit::per_second(3);
        for _ in 0..2 {
            assert_eq!((0..10).filter(|_| limit.allow()).count(), 3);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
