//! How a process signs its messages on the bus: with keys from the store.

use std::sync::Arc;

use async_trait::async_trait;
use remuda_config::{BusSigning as Setting, Config};
use remuda_domain::{bus::BusKey, error::Result};
use remuda_store::Store;
use remuda_transport::{BusSigning, KeySource, Signing, SignsAs};

use crate::Roles;

struct StoredKeys(Arc<dyn Store>);

#[async_trait]
impl KeySource for StoredKeys {
    async fn keys(&self) -> Result<Vec<BusKey>> {
        self.0.bus_keys().await
    }
}

/// How a process with these roles takes part in signing.
pub(crate) fn bus_signing(config: &Config, roles: Roles, store: &Arc<dyn Store>) -> BusSigning {
    let signing = match config.nats.signing {
        Setting::Off => Signing::Off,
        Setting::Sign => Signing::Sign,
        Setting::Require => Signing::Require,
    };
    let signs_as = match roles.control_plane || roles.stream {
        true => SignsAs::Installation,
        false => SignsAs::Worker,
    };
    BusSigning { signing, signs_as, keys: Arc::new(StoredKeys(Arc::clone(store))) }
}
