//! What an operator allows beyond the public internet.

use std::net::IpAddr;

use remuda_domain::error::{Error, Result};

use crate::address::{is_public, within};

/// The ports that need no allowance.
const WEB_PORTS: [u16; 2] = [80, 443];

/// A host or a network that may be reached although it is not public. `intranet.example`, `*.corp.example:8443`,
/// `10.1.0.0/16`, `127.0.0.1:8080`, `[fd00::1]:80`. Without a port it is for 80 and 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    what: What,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Host(String),
    /// All names that end so, from the dot.
    Beneath(String),
    Network(IpAddr, u8),
}

impl Allowed {
    /// Reads one entry of an operator's list.
    pub fn parse(field: &str, entry: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(field, "expected a host, *.host, address or network/prefix, with or without :port")
        };
        let (what, port) = split_port(entry).ok_or_else(wrong)?;
        let what = if let Some((network, prefix)) = what.split_once('/') {
            let network: IpAddr = bare(network).parse().map_err(|_| wrong())?;
            let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
            if prefix > if network.is_ipv4() { 32 } else { 128 } {
                return Err(wrong());
            }
            What::Network(network, prefix)
        } else if let Ok(address) = bare(what).parse::<IpAddr>() {
            What::Network(address, if address.is_ipv4() { 32 } else { 128 })
        } else {
            let name = normal(what);
            let (name, beneath) = name.strip_prefix("*.").map_or((name.as_str(), false), |rest| (rest, true));
            if !is_host_name(name) {
                return Err(wrong());
            }
            if beneath { What::Beneath(format!(".{name}")) } else { What::Host(name.to_owned()) }
        };
        Ok(Self { what, port })
    }

    fn covers_port(&self, port: u16) -> bool {
        self.port.map_or(WEB_PORTS.contains(&port), |own| own == port)
    }

    fn covers(&self, host: &str, address: IpAddr, port: u16) -> bool {
        self.covers_port(port)
            && match &self.what {
                What::Host(name) => *name == host,
                What::Beneath(end) => host.ends_with(end.as_str()),
                What::Network(network, prefix) => within(address, *network, *prefix),
            }
    }
}

/// Whether a connection to this address, found under this host name, may be made: it is on the public web, or allowed.
#[must_use]
pub fn may_connect(allowed: &[Allowed], host: &str, address: IpAddr, port: u16) -> bool {
    (WEB_PORTS.contains(&port) && is_public(address)) || is_listed(allowed, host, address, port)
}

/// Whether the operator has allowed this place by name or address.
pub(crate) fn is_listed(allowed: &[Allowed], host: &str, address: IpAddr, port: u16) -> bool {
    let host = normal(host);
    allowed.iter().any(|entry| entry.covers(&host, address, port))
}

/// Without the brackets of an IPv6 address.
pub(crate) fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Letters, digits and hyphens between dots.
#[must_use]
pub fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// As names are compared: in small letters, without the dot at the end.
#[must_use]
pub fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// `None` if what looks like a port is none.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    if let Some((what, port)) = entry.rsplit_once(':')
        && (!what.contains(':') || what.ends_with(']') || what.contains("]/"))
    {
        return Some((what, Some(port.parse().ok().filter(|port| *port > 0)?)));
    }
    Some((entry, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Vec<Allowed> {
        entries.iter().map(|entry| Allowed::parse("allowed", entry).unwrap()).collect()
    }

    fn may(allowed: &[&str], host: &str, address: &str, port: u16) -> bool {
        may_connect(&list(allowed), host, address.parse().unwrap(), port)
    }

    #[test]
    fn without_a_list_only_the_public_web() {
        assert!(
            may(&[], "example.org", "93.184.215.14", 443) && may(&[], "example.org", "93.184.215.14", 80)
        );
        assert!(!may(&[], "example.org", "93.184.215.14", 22) && !may(&[], "example.org", "127.0.0.1", 443));
    }

    #[test]
    fn an_entry_opens_what_it_says_and_no_more() {
        assert!(may(&["intra.example"], "Intra.Example.", "10.0.0.1", 443));
        assert!(!may(&["intra.example"], "x.intra.example", "10.0.0.1", 443));
        assert!(!may(&["intra.example"], "intra.example", "10.0.0.1", 8080));
        assert!(may(&["intra.example:8080"], "intra.example", "10.0.0.1", 8080));
        assert!(!may(&["intra.example:8080"], "intra.example", "10.0.0.1", 443));
        assert!(may(&["*.corp.example"], "a.b.corp.example", "10.0.0.1", 80));
        assert!(!may(&["*.corp.example"], "corp.example", "10.0.0.1", 80));
        assert!(!may(&["*.corp.example"], "evilcorp.example", "10.0.0.1", 80));
        assert!(
            may(&["10.0.0.0/8"], "anything", "10.2.3.4", 80)
                && !may(&["10.0.0.0/8"], "anything", "11.2.3.4", 22)
        );
        assert!(may(&["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1", 8080));
        assert!(!may(&["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1", 80));
        assert!(may(&["[fd00::1]:90"], "x", "fd00::1", 90) && may(&["fd00::/8"], "x", "fd12::1", 80));
        assert!(may(&["[fd00::]/8:90"], "x", "fd12::1", 90));
    }

    #[test]
    fn bad_entries_are_refused() {
        for entry in [
            "",
            "a b",
            "http://x",
            "x:0",
            "x:99999",
            "x:y",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "*.",
            "a..b",
            "*",
            "a/b",
        ] {
            assert!(Allowed::parse("allowed", entry).is_err(), "{entry}");
        }
    }
}
