//! Where models of workspaces may be.
//!
//! A tenant writes the address of such a model, and a worker goes there: without a rule, to whatever its network has.

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

/// Decides about an address that was found under a host name, and a port of it.
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

/// A rule for one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    rule: AddressRule,
    host: String,
    port: u16,
}

impl Gate {
    pub(crate) fn new(rule: &AddressRule, url: &Url) -> Self {
        let host = url.host_str().unwrap_or_default().to_owned();
        Self { rule: rule.clone(), host, port: url.port_or_known_default().unwrap_or(443) }
    }

    /// Refuses an endpoint that is not where it may be. One that cannot be found is the connection's trouble.
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
        // Not which address: that would tell of networks behind us.
        let message =
            format!("{} is not on the public web, and not allowed for models of workspaces", self.host);
        Err(Error::new(Code::AddressNotAllowed, message).at("url"))
    }

    /// One bad address among good ones is reason enough: the name cannot be trusted.
    fn allows(&self, addresses: &[IpAddr]) -> bool {
        addresses.iter().all(|address| (self.rule.0)(&self.host, *address, self.port))
    }
}

/// What a name means may have changed since it was checked, so it is checked again where the connection is made.
impl Resolve for Gate {
    fn resolve(&self, name: Name) -> Resolving {
        let gate = self.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Vec<IpAddr> = found.iter().map(SocketAddr::ip).collect();
            if !gate.allows(&addresses) {
                return Err("the address is not allowed".into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}
