//! Host name resolution.

use std::{fmt, io, net::IpAddr};

use async_trait::async_trait;

/// Resolves host names. Every returned address is checked before a connection is made.
#[async_trait]
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// Resolves names with the operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}
