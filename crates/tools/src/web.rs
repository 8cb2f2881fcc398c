//! The way out: what tools may fetch, and how.
//!
//! A fetch goes to public addresses only, unless the operator allows more. Names are resolved here, all their addresses
//! are checked, and the connection is made to the checked ones: what a name means cannot change in between. Redirects
//! are followed within a host, each checked like the first request.

mod address;
mod allowed;
mod client;
mod html;
mod resolve;
mod search;
mod text;
mod url;

use std::{net::IpAddr, sync::Arc, time::Duration};

pub use self::{
    allowed::Allowed,
    resolve::{Resolve, SystemResolver},
    search::{SearchHit, SearchProvider, SearchQuery, SearxNg},
};
pub(crate) use self::{
    allowed::{is_host_name, normal},
    client::{Content, Fetched, Fetcher},
    text::{Document, shortened},
    url::check_url,
};

/// Whether a connection to this address, found under this host name, may be made: it is on the public web, or allowed.
#[must_use]
pub fn may_connect(allowed: &[Allowed], host: &str, address: IpAddr, port: u16) -> bool {
    allowed::may_connect(allowed, host, address, port)
}

/// What `WebFetch` may do.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Hosts and networks that it may reach although they are not public.
    pub allowed: Vec<Allowed>,
    pub resolver: Arc<dyn Resolve>,
    /// For a whole fetch, redirects included.
    pub timeout: Duration,
    /// Of a body, after decompression.
    pub max_bytes: usize,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            resolver: Arc::new(SystemResolver),
            timeout: Duration::from_secs(120),
            max_bytes: 5 << 20,
        }
    }
}
