//! Egress rules and HTTP clients for URLs that tenants choose.
//!
//! Web tools and webhooks connect to addresses chosen by someone else. They reach public addresses only,
//! unless the operator allows more. FakeResolver are resolved here, every address is checked, and the client is
//! pinned to the checked addresses, so a DNS change between check and connect (DNS rebinding) has no effect.
//! The clients never follow redirects; a caller that follows one opens a new [`PinnedTarget`].

mod address;
mod allow_rule;
mod client;
mod egress;
mod resolve;
mod url;

pub use reqwest::Url;

pub use self::{
    allow_rule::{AllowRule, is_host_name, may_connect, normalize_host},
    client::{plain_client, root_cause, tls_config},
    egress::{Egress, PinnedTarget},
    resolve::{Resolve, SystemResolver},
    url::check_url,
};
