//! Checks URLs against the egress rules and opens clients for them.

use std::{net::IpAddr, sync::Arc};

use remuda_domain::error::{Code, Error, Result};
use reqwest::{Client, Url};
use rustls::ClientConfig;
use tokio::sync::OnceCell;

use crate::{
    allow_rule::{AllowRule, may_connect, strip_brackets},
    client::{pinned_client, tls_config},
    resolve::Resolve,
    url::{check_url_parts, upgrade_to_https},
};

/// Egress rules for one kind of request, with the resolver and TLS configuration to apply them.
#[derive(Debug)]
pub struct Egress {
    /// Field named in errors about the URL.
    field: &'static str,
    /// Rules for hosts and networks that are not public.
    allowed: Vec<AllowRule>,
    resolver: Arc<dyn Resolve>,
    tls: OnceCell<ClientConfig>,
}

/// A checked URL and a client pinned to its addresses. Usable for a handful of requests, not for days: the
/// name may change its meaning.
#[derive(Clone, Debug)]
pub struct PinnedTarget {
    /// The URL to request: upgrade_to_https to https, unless the operator has listed the host.
    pub url: Url,
    pub client: Client,
}

/// A URL with the addresses of its host.
struct Resolved {
    url: Url,
    addresses: Vec<IpAddr>,
}

impl Egress {
    #[must_use]
    pub fn new(field: &'static str, allowed: Vec<AllowRule>, resolver: Arc<dyn Resolve>) -> Self {
        Self { field, allowed, resolver, tls: OnceCell::new() }
    }

    /// Checks whether the URL is allowed now. Fails with `address_not_allowed`, or with `unavailable` if the
    /// host cannot be resolved.
    pub async fn check(&self, url: Url) -> Result<()> {
        self.resolve(url).await.map(drop)
    }

    /// Checks the URL and opens a client for it.
    pub async fn open(&self, url: Url) -> Result<PinnedTarget> {
        let Resolved { url, addresses } = self.resolve(url).await?;
        let tls = self.tls.get_or_try_init(tls_config).await?.clone();
        let client = pinned_client(tls, url.host_str().unwrap_or_default().to_owned(), addresses)?;
        Ok(PinnedTarget { url, client })
    }

    async fn resolve(&self, url: Url) -> Result<Resolved> {
        check_url_parts(self.field, &url)?;
        let addresses = self.addresses(url.host_str().unwrap_or_default()).await?;
        let url = upgrade_to_https(url, &addresses, &self.allowed)?;
        let (host, port) =
            (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        // One forbidden address suffices to reject: the name cannot be trusted.
        if !addresses.iter().all(|address| may_connect(&self.allowed, host, *address, port)) {
            // The address is not named: it would reveal internal networks.
            let message = format!("{host} on port {port} is not on the public web, and not allowed here");
            return Err(Error::new(Code::AddressNotAllowed, message).at(self.field));
        }
        Ok(Resolved { url, addresses })
    }

    /// Resolves a host.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>> {
        let not_found = || Error::unavailable(format!("cannot find the host {host}")).at(self.field);
        let addresses = match strip_brackets(host).parse() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = self.resolver.resolve(host).await;
                found.map_err(|error| not_found().with_source(error))?
            }
        };
        if addresses.is_empty() { Err(not_found()) } else { Ok(addresses) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;

    use super::*;

    /// Resolves a few fixed names.
    #[derive(Debug)]
    struct FakeResolver;

    #[async_trait]
    impl Resolve for FakeResolver {
        async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
            let addresses: &[&str] = match host {
                "public.example" => &["93.184.215.14"],
                "private.example" => &["10.0.0.1"],
                "mixed.example" => &["93.184.215.14", "127.0.0.1"],
                "empty.example" => &[],
                _ => return Err(io::Error::other("no such name")),
            };
            Ok(addresses.iter().filter_map(|address| address.parse().ok()).collect())
        }
    }

    async fn check(allowed: &[&str], url: &str) -> Result<(), Code> {
        let allowed = allowed.iter().map(|entry| AllowRule::parse("allowed", entry).unwrap()).collect();
        let egress = Egress::new("url", allowed, Arc::new(FakeResolver));
        egress.check(url.parse().unwrap()).await.map_err(|error| {
            assert_eq!(error.field(), Some("url"));
            error.code()
        })
    }

    #[tokio::test]
    async fn all_resolved_addresses_are_checked() {
        assert_eq!(check(&[], "https://public.example/x").await, Ok(()));
        for url in ["https://private.example", "https://mixed.example", "http://127.0.0.1", "https://[::1]"] {
            assert_eq!(check(&[], url).await, Err(Code::AddressNotAllowed), "{url}");
        }
        assert_eq!(check(&[], "https://public.example:8443").await, Err(Code::AddressNotAllowed));
        assert_eq!(check(&["10.0.0.0/8"], "https://private.example").await, Ok(()));
        assert_eq!(check(&["127.0.0.1:81"], "http://127.0.0.1:81").await, Ok(()));
        for url in ["https://unknown.example", "https://empty.example"] {
            assert_eq!(check(&[], url).await, Err(Code::Unavailable), "{url}");
        }
        assert_eq!(check(&[], "ftp://public.example").await, Err(Code::InvalidArgument));
    }

    #[tokio::test]
    async fn opened_url_is_https_unless_listed() {
        let allowed = vec![AllowRule::parse("allowed", "private.example").unwrap()];
        let egress = Egress::new("url", allowed, Arc::new(FakeResolver));
        let opened = async |url: &str| egress.open(url.parse().unwrap()).await.unwrap().url.to_string();
        assert_eq!(opened("http://public.example/a").await, "https://public.example/a");
        assert_eq!(opened("http://private.example/a#b").await, "http://private.example/a");
    }
}
