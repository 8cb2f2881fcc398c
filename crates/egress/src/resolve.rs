//! Names to addresses.

use std::{fmt, io, net::IpAddr};

use async_trait::async_trait;

/// Looks names up. Every address it gives is checked before anything is sent there.
#[async_trait]
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// As the machine does.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}
