//! What a process needs to sign its messages on the bus, and to check those of others.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use rand::RngCore as _;
use remuda_domain::{
    bus::{BusKey, BusSecret},
    error::Result,
};

/// What a process does with signatures. An installation goes from one to the next without a downtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signing {
    /// Messages are neither signed nor checked.
    Off,
    /// Messages are signed. Unsigned ones are accepted, wrongly signed ones are not.
    Sign,
    /// Only signed messages are accepted. Others are at most a reason to read the store.
    #[default]
    Require,
}

/// Which key a process signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignsAs {
    /// The newest key of the installation: processes with a control plane or a stream service.
    Installation,
    /// The key that the worker registers, see [`Transport::sign_as`](crate::Transport::sign_as).
    Worker,
}

/// Reads the keys that are accepted now. The store is the only place that has them.
#[async_trait]
pub trait KeySource: Send + Sync + 'static {
    /// Keys of the installation come first, the newest before the others.
    async fn keys(&self) -> Result<Vec<BusKey>>;
}

/// How a process takes part in signing.
#[derive(Clone)]
pub struct BusSigning {
    pub signing: Signing,
    pub signs_as: SignsAs,
    pub keys: Arc<dyn KeySource>,
}

impl fmt::Debug for BusSigning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signing, signs_as, keys: _ } = self;
        f.debug_struct("BusSigning")
            .field("signing", signing)
            .field("signs_as", signs_as)
            .finish_non_exhaustive()
    }
}

/// Generates a secret.
#[must_use]
pub fn new_bus_secret() -> BusSecret {
    let mut bytes = [0; BusSecret::LEN];
    rand::rng().fill_bytes(&mut bytes);
    BusSecret::new(bytes)
}
