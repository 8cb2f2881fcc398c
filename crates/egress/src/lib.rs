//! The way out: what may be asked for on behalf of others, and how.
//!
//! Tools that fetch and webhooks that are delivered go to addresses which someone else chose. They reach public addresses
//! only, unless the operator allows more. Names are resolved here, all their addresses are checked, and the connection is
//! made to the checked ones: what a name means cannot change in between. Redirects are never followed by the client itself;
//! whoever follows one opens a new [`Way`].

mod address;
mod allowed;
mod client;
mod egress;
mod resolve;
mod url;

pub use reqwest::Url;

pub use self::{
    allowed::{Allowed, is_host_name, may_connect, normal},
    client::{cause, plain_client, tls_config},
    egress::{Egress, Way},
    resolve::{Resolve, SystemResolver},
    url::check_url,
};
