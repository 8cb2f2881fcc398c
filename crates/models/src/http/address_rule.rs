//! Restricts the network addresses of workspace models.
//!
//! A tenant writes the URL of such a model, and a worker connects to it. Without a rule, the worker would connect to
//! anything in its network.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use remuda_domain::error::{Code, Error, Result};
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use tokio::net::lookup_host;

type Decide = dyn Fn(&str, IpAddr, u16) -> bool + Send + Sync;

/// Decides about a resolved address and port of a host name.
#[derive(Clone)]
pub struct AddressRule(Arc<Decide>);

impl AddressRule {
    pub fn new(decide: impl Fn(&str, IpAddr, u16) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(decide))
    }
}

impl fmt::Debug for AddressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressRule")
    }
}

/// The rule for one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EndpointRule {
    rule: AddressRule,
    host: String,
    port: u16,
}

impl EndpointRule {
    pub(crate) fn new(rule: &AddressRule, url: &Url) -> Self {
        let host = url.host_str().unwrap_or_default().to_owned();
        Self { rule: rule.clone(), host, port: url.port_or_known_default().unwrap_or(443) }
    }

    /// Rejects an endpoint with a forbidden address. A name that cannot be resolved is left to the connection's
    /// error.
    pub(crate) async fn check(&self) -> Result<()> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match lookup_host((bare, self.port)).await {
                Ok(found) => found.map(|address| address.ip()).collect(),
                Err(_) => return Ok(()),
            },
        };
        if self.allows(&addresses) {
            return Ok(());
        }
        // Without the address: it would reveal the internal network.
        let message =
            format!("{} is not on the public web, and not allowed for models of workspaces", self.host);
        Err(Error::new(Code::AddressNotAllowed, message).at("url"))
    }

    /// One forbidden address is enough to reject the name: it cannot be trusted.
    fn allows(&self, addresses: &[IpAddr]) -> bool {
        addresses.iter().all(|address| (self.rule.0)(&self.host, *address, self.port))
    }
}

/// The name may resolve differently since it was checked, so it is checked again when connecting.
impl Resolve for EndpointRule {
    fn resolve(&self, name: Name) -> Resolving {
        let rule = self.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Vec<IpAddr> = found.iter().map(SocketAddr::ip).collect();
            if !rule.allows(&addresses) {
                return Err("the address is not allowed".into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}
