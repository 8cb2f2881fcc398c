//! From a URL to a client that may be used for it.

use std::{net::IpAddr, sync::Arc};

use remuda_domain::error::{Code, Error, Result};
use reqwest::{Client, Url};
use rustls::ClientConfig;
use tokio::sync::OnceCell;

use crate::{
    allowed::{Allowed, bare, may_connect},
    client::{pinned_client, tls_config},
    resolve::Resolve,
    url::{check_parts, upgraded},
};

/// The rules of one kind of request, and what is needed to follow them.
#[derive(Debug)]
pub struct Egress {
    /// The field that names the URL, for errors.
    field: &'static str,
    /// Hosts and networks that may be reached although they are not public.
    allowed: Vec<Allowed>,
    resolver: Arc<dyn Resolve>,
    tls: OnceCell<ClientConfig>,
}

/// A URL that may be asked for, and the client to do it with. It stays good for as long as the name may be taken to mean the
/// same: for a handful of requests, not for days.
#[derive(Clone, Debug)]
pub struct Way {
    /// As it is to be asked for: encrypted, unless the operator has listed the place.
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
    pub fn new(field: &'static str, allowed: Vec<Allowed>, resolver: Arc<dyn Resolve>) -> Self {
        Self { field, allowed, resolver, tls: OnceCell::new() }
    }

    /// Whether the URL may be asked for at this moment. Fails with `address_not_allowed`, and with `unavailable` if its host
    /// cannot be found.
    pub async fn check(&self, url: Url) -> Result<()> {
        self.resolve(url).await.map(drop)
    }

    /// The same, with a client for it.
    pub async fn open(&self, url: Url) -> Result<Way> {
        let Resolved { url, addresses } = self.resolve(url).await?;
        let tls = self.tls.get_or_try_init(tls_config).await?.clone();
        let client = pinned_client(tls, url.host_str().unwrap_or_default().to_owned(), addresses)?;
        Ok(Way { url, client })
    }

    async fn resolve(&self, url: Url) -> Result<Resolved> {
        check_parts(self.field, &url)?;
        let addresses = self.addresses(url.host_str().unwrap_or_default()).await?;
        let url = upgraded(url, &addresses, &self.allowed)?;
        let (host, port) =
            (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        // One bad address among good ones is reason enough: the name cannot be trusted.
        if !addresses.iter().all(|address| may_connect(&self.allowed, host, *address, port)) {
            // Not which address: that would tell of networks behind us.
            let message = format!("{host} on port {port} is not on the public web, and not allowed here");
            return Err(Error::new(Code::AddressNotAllowed, message).at(self.field));
        }
        Ok(Resolved { url, addresses })
    }

    /// The addresses of a host: looked up once for each way.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>> {
        let missing = || Error::unavailable(format!("cannot find the host {host}")).at(self.field);
        let addresses = match bare(host).parse() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = self.resolver.resolve(host).await;
                found.map_err(|error| missing().with_source(error))?
            }
        };
        if addresses.is_empty() { Err(missing()) } else { Ok(addresses) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;

    use super::*;

    /// Knows some names.
    #[derive(Debug)]
    struct Names;

    #[async_trait]
    impl Resolve for Names {
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
        let allowed = allowed.iter().map(|entry| Allowed::parse("allowed", entry).unwrap()).collect();
        let egress = Egress::new("url", allowed, Arc::new(Names));
        egress.check(url.parse().unwrap()).await.map_err(|error| {
            assert_eq!(error.field(), Some("url"));
            error.code()
        })
    }

    #[tokio::test]
    async fn names_are_looked_through() {
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
    async fn a_way_is_encrypted_unless_listed() {
        let allowed = vec![Allowed::parse("allowed", "private.example").unwrap()];
        let egress = Egress::new("url", allowed, Arc::new(Names));
        let opened = async |url: &str| egress.open(url.parse().unwrap()).await.unwrap().url.to_string();
        assert_eq!(opened("http://public.example/a").await, "https://public.example/a");
        assert_eq!(opened("http://private.example/a#b").await, "http://private.example/a");
    }
}
