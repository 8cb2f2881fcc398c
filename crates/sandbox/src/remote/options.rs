//! Configuration of a remote backend, whatever provides its instances.

use std::{sync::Arc, time::Duration};

use remuda_domain::{WorkerId, execution::ResourceLimits};

use super::provisioner::InstanceSpec;
use crate::{guard::Guard, registry::SandboxRegistry};

#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Distinguishes our instances from those of other Remuda installations on the same engine.
    pub installation: String,
    /// Worker id for spares. Instances for a session carry the worker of the request.
    pub worker: WorkerId,
    /// Spares to keep ready.
    pub warm: Vec<WarmTarget>,
    /// An idle instance is paused after this time; never if `None`.
    pub pause_after: Option<Duration>,
    /// An idle instance is removed after this time.
    pub remove_after: Duration,
    /// Limit of all instances, including spares.
    pub max_instances: usize,
    /// Grace period between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Prevents file writes of a worker that was stopped for too long.
    pub guard: Option<Arc<Guard>>,
    /// Records created instances.
    pub registry: Option<Arc<dyn SandboxRegistry>>,
}

/// Spares of one specification, for sessions with a copied workspace: a mount cannot be changed afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmTarget {
    pub image: String,
    pub count: usize,
    pub network: String,
    pub limits: ResourceLimits,
}

impl WarmTarget {
    pub(super) fn spec(&self) -> InstanceSpec {
        InstanceSpec {
            image: self.image.clone(),
            network: self.network.clone(),
            limits: self.limits,
            mount: None,
        }
    }
}

impl RemoteOptions {
    #[must_use]
    pub fn new(installation: impl Into<String>, worker: WorkerId) -> Self {
        Self {
            installation: installation.into(),
            worker,
            warm: Vec::new(),
            pause_after: None,
            remove_after: Duration::from_secs(15 * 60),
            max_instances: 64,
            grace: Duration::from_millis(500),
            guard: None,
            registry: None,
        }
    }
}
