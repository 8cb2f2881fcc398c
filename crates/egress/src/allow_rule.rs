//! Operator rules that allow hosts and networks beyond the public internet.

use std::net::IpAddr;

use remuda_domain::error::{Error, Result};

use crate::address::{in_network, is_public};

/// Ports that are allowed by default.
const WEB_PORTS: [u16; 2] = [80, 443];

/// A host or network that may be reached although it is not public. Examples: `intranet.example`,
/// `*.corp.example:8443`, `10.1.0.0/16`, `127.0.0.1:8080`, `[fd00::1]:80`. Without a port, the rule covers 80
/// and 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowRule {
    target: RuleTarget,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleTarget {
    Host(String),
    /// All names with this suffix, which starts with a dot.
    Subdomains(String),
    Network(IpAddr, u8),
}

impl AllowRule {
    /// Parses one entry of an operator's list. `field` names the setting in errors.
    pub fn parse(field: &str, entry: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(field, "expected a host, *.host, address or network/prefix, with or without :port")
        };
        let (target, port) = split_port(entry).ok_or_else(invalid)?;
        let target = if let Some((network, prefix)) = target.split_once('/') {
            let network: IpAddr = strip_brackets(network).parse().map_err(|_| invalid())?;
            let prefix: u8 = prefix.parse().map_err(|_| invalid())?;
            if prefix > if network.is_ipv4() { 32 } else { 128 } {
                return Err(invalid());
            }
            RuleTarget::Network(network, prefix)
        } else if let Ok(address) = strip_brackets(target).parse::<IpAddr>() {
            RuleTarget::Network(address, if address.is_ipv4() { 32 } else { 128 })
        } else {
            let name = normalize_host(target);
            let (name, is_wildcard) =
                name.strip_prefix("*.").map_or((name.as_str(), false), |rest| (rest, true));
            if !is_host_name(name) {
                return Err(invalid());
            }
            if is_wildcard {
                RuleTarget::Subdomains(format!(".{name}"))
            } else {
                RuleTarget::Host(name.to_owned())
            }
        };
        Ok(Self { target, port })
    }

    fn covers_port(&self, port: u16) -> bool {
        self.port.map_or(WEB_PORTS.contains(&port), |covered| covered == port)
    }

    fn covers(&self, host: &str, address: IpAddr, port: u16) -> bool {
        self.covers_port(port)
            && match &self.target {
                RuleTarget::Host(name) => *name == host,
                RuleTarget::Subdomains(end) => host.ends_with(end.as_str()),
                RuleTarget::Network(network, prefix) => in_network(address, *network, *prefix),
            }
    }
}

/// Whether a connection to this address, resolved from this host name, is allowed: it is on the public web,
/// or a rule covers it.
#[must_use]
pub fn may_connect(allowed: &[AllowRule], host: &str, address: IpAddr, port: u16) -> bool {
    (WEB_PORTS.contains(&port) && is_public(address)) || is_listed(allowed, host, address, port)
}

/// Whether an operator rule covers this host or address.
pub(crate) fn is_listed(allowed: &[AllowRule], host: &str, address: IpAddr, port: u16) -> bool {
    let host = normalize_host(host);
    allowed.iter().any(|entry| entry.covers(&host, address, port))
}

/// Removes the brackets around an IPv6 address.
pub(crate) fn strip_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Whether the name consists of dot-separated labels of letters, digits, hyphens and underscores.
#[must_use]
pub fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Normal form for comparing host names: lowercase, without a trailing dot.
#[must_use]
pub fn normalize_host(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Splits off the port. `None` if the port is invalid.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    if let Some((target, port)) = entry.rsplit_once(':')
        && (!target.contains(':') || target.ends_with(']') || target.contains("]/"))
    {
        return Some((target, Some(port.parse().ok().filter(|port| *port > 0)?)));
    }
    Some((entry, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[&str]) -> Vec<AllowRule> {
        entries.iter().map(|entry| AllowRule::parse("allowed", entry).unwrap()).collect()
    }

    fn allows(allowed: &[&str], host: &str, address: &str, port: u16) -> bool {
        may_connect(&rules(allowed), host, address.parse().unwrap(), port)
    }

    #[test]
    fn without_rules_only_the_public_web_is_allowed() {
        assert!(
            allows(&[], "example.org", "93.184.215.14", 443)
                && allows(&[], "example.org", "93.184.215.14", 80)
        );
        assert!(
            !allows(&[], "example.org", "93.184.215.14", 22) && !allows(&[], "example.org", "127.0.0.1", 443)
        );
    }

    #[test]
    fn rule_covers_exactly_its_host_network_and_port() {
        assert!(allows(&["intra.example"], "Intra.Example.", "10.0.0.1", 443));
        assert!(!allows(&["intra.example"], "x.intra.example", "10.0.0.1", 443));
        assert!(!allows(&["intra.example"], "intra.example", "10.0.0.1", 8080));
        assert!(allows(&["intra.example:8080"], "intra.example", "10.0.0.1", 8080));
        assert!(!allows(&["intra.example:8080"], "intra.example", "10.0.0.1", 443));
        assert!(allows(&["*.corp.example"], "a.b.corp.example", "10.0.0.1", 80));
        assert!(!allows(&["*.corp.example"], "corp.example", "10.0.0.1", 80));
        assert!(!allows(&["*.corp.example"], "evilcorp.example", "10.0.0.1", 80));
        assert!(
            allows(&["10.0.0.0/8"], "anything", "10.2.3.4", 80)
                && !allows(&["10.0.0.0/8"], "anything", "11.2.3.4", 22)
        );
        assert!(allows(&["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1", 8080));
        assert!(!allows(&["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1", 80));
        assert!(allows(&["[fd00::1]:90"], "x", "fd00::1", 90) && allows(&["fd00::/8"], "x", "fd12::1", 80));
        assert!(allows(&["[fd00::]/8:90"], "x", "fd12::1", 90));
    }

    #[test]
    fn invalid_rules_are_rejected() {
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
            assert!(AllowRule::parse("allowed", entry).is_err(), "{entry}");
        }
    }
}
