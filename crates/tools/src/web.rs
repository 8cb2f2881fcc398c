//! Web access of tools, within the rules of [`remuda_egress`]. Redirects are followed within a host, each
//! checked like the first request.

mod client;
mod html;
mod search;
mod text;

use std::{sync::Arc, time::Duration};

pub use remuda_egress::{AllowRule, Resolve, SystemResolver};

pub use self::search::{SearchHit, SearchProvider, SearchQuery, SearxNg};
pub(crate) use self::{
    client::{Content, FetchResult, Fetcher},
    text::{Document, MediaType, truncate_chars},
};

/// The argument with the URL.
pub(crate) const URL_FIELD: &str = "arguments.url";

/// Options of `WebFetch`.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Hosts and networks that may be reached although they are not public.
    pub allowed: Vec<AllowRule>,
    pub resolver: Arc<dyn Resolve>,
    /// Time limit of a whole fetch, including redirects.
    pub timeout: Duration,
    /// Size limit of a body after decompression.
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
