//! Keys that sign messages on the bus.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    BusKeyId,
    bus::{BusKey, BusSecret},
    error::Result,
};

/// Keys that sign messages on the bus. These calls act for the system, not for a tenant.
///
/// The first key of the installation is created with the table. A worker's key is part of its
/// [registration](crate::Fleet::register_worker).
#[async_trait]
pub trait BusKeys {
    /// All keys that are accepted now: those of the installation, newest first, then those of workers whose lease is
    /// live.
    async fn bus_keys(&self) -> Result<Vec<BusKey>>;
    /// Adds a key of the installation. The earlier ones are accepted for `keep` longer, unless they retire before.
    async fn rotate_bus_key(&self, secret: &BusSecret, keep: Duration) -> Result<BusKeyId>;
}
