//! Deletes expired idempotency keys.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::background_task::{BackgroundTask, Round};

/// Not urgent: expired keys are ignored anyway.
const PACE: Duration = Duration::from_secs(60);

pub(super) struct DeleteExpiredKeys {
    pub(super) store: Arc<dyn Store>,
}

#[async_trait]
impl BackgroundTask for DeleteExpiredKeys {
    fn name(&self) -> &'static str {
        "delete_expired_keys"
    }

    fn pace(&self) -> Duration {
        PACE
    }

    async fn round(&mut self) -> Result<Round> {
        Ok(Round::of([("deleted", self.store.delete_expired_keys().await?)]))
    }
}
