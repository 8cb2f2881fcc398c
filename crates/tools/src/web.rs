//! What tools may fetch, and how: within the rules of [`remuda_egress`]. Redirects are followed within a host, each checked like
//! the first request.

mod client;
mod html;
mod search;
mod text;

use std::{sync::Arc, time::Duration};

pub use remuda_egress::{Allowed, Resolve, SystemResolver};

pub use self::search::{SearchHit, SearchProvider, SearchQuery, SearxNg};
pub(crate) use self::{
    client::{Content, Fetched, Fetcher},
    text::{Document, shortened},
};

/// The argument that says what to fetch.
pub(crate) const URL_FIELD: &str = "arguments.url";

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
