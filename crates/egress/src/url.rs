//! URL syntax checks and the upgrade to https.

use std::net::IpAddr;

use remuda_domain::error::{Code, Error, Result};
use reqwest::Url;

use crate::allow_rule::{AllowRule, is_host_name, is_listed};

const MAX_URL_BYTES: usize = 8 * 1024;

/// Parses and checks a URL without resolving its host. `field` names it in errors.
pub fn check_url(field: &str, url: &str) -> Result<Url> {
    let wrong = |message: &str| Error::invalid(field, message);
    if url.len() > MAX_URL_BYTES {
        let message = format!("{} bytes, at most {MAX_URL_BYTES} are allowed", url.len());
        return Err(Error::new(Code::TooLarge, message).at(field));
    }
    let url = Url::parse(url).map_err(|error| wrong(&format!("expected an absolute URL: {error}")))?;
    check_url_parts(field, &url)?;
    Ok(url)
}

/// Checks scheme, credentials and host. Applies to given URLs and to redirect targets.
pub(crate) fn check_url_parts(field: &str, url: &Url) -> Result<()> {
    let wrong = |message: &str| Error::invalid(field, message);
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("expected http or https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("expected no user name and no password"));
    }
    let Some(host) = url.host_str() else { return Err(wrong("expected a host")) };
    // An IPv6 address is in brackets; IPv4 addresses have the syntax of names.
    let host = host.strip_suffix('.').unwrap_or(host);
    if !host.starts_with('[') && !is_host_name(host) {
        return Err(wrong("expected a host name of letters, digits and hyphens"));
    }
    Ok(())
}

/// Upgrades http to https, unless the operator has listed all of the host's addresses. Drops the fragment.
pub(crate) fn upgrade_to_https(mut url: Url, addresses: &[IpAddr], allowed: &[AllowRule]) -> Result<Url> {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
    let listed = addresses.iter().all(|address| is_listed(allowed, host, *address, port));
    if url.scheme() == "http" && !listed {
        url.set_scheme("https").map_err(|()| Error::internal("cannot make a URL https"))?;
    }
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrade(url: &str, addresses: &[&str], allowed: &[&str]) -> String {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let allowed: Vec<_> = allowed.iter().map(|entry| AllowRule::parse("a", entry).unwrap()).collect();
        upgrade_to_https(check_url("url", url).unwrap(), &addresses, &allowed).unwrap().to_string()
    }

    #[test]
    fn http_is_upgraded_to_https_unless_listed() {
        let (public, inner) = ("93.184.215.14", "10.0.0.1");
        assert_eq!(upgrade("http://Example.org/a?b#c", &[public], &[]), "https://example.org/a?b");
        assert_eq!(upgrade("http://example.org:80/", &[public], &["10.0.0.0/8"]), "https://example.org/");
        assert_eq!(upgrade("http://wiki/", &[inner], &["wiki"]), "http://wiki/");
        assert_eq!(upgrade("http://wiki/", &[inner], &["10.0.0.0/8"]), "http://wiki/");
        assert_eq!(upgrade("http://wiki/", &[inner, public], &["10.0.0.0/8"]), "https://wiki/");
        assert_eq!(upgrade("http://wiki:82/", &[inner], &["10.0.0.1:81"]), "https://wiki:82/");
    }

    #[test]
    fn alternative_ipv4_notations_are_normalized() {
        for form in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001/",
            "http://127.1/",
            "http://127.0.0.1./",
        ] {
            assert_eq!(check_url("url", form).unwrap().host_str(), Some("127.0.0.1"), "{form}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for url in [
            "",
            "example.org",
            "/path",
            "ftp://example.org/",
            "file:///etc/passwd",
            "gopher://x",
            "data:text/plain,x",
            "http://",
            "http://a@127.0.0.1/",
            "http://:b@c/",
            "http://exa mple.org/",
            "http://evil\0.ok.com/",
            "http://a,b/",
            "http://999.1.1.1.1/",
            "http://[::1",
            "javascript:alert(1)",
        ] {
            let error = check_url("arguments.url", url).unwrap_err();
            assert_eq!(
                (error.code(), error.field()),
                (Code::InvalidArgument, Some("arguments.url")),
                "{url}"
            );
        }
        assert_eq!(
            check_url("url", &format!("http://x/{}", "a".repeat(9000))).unwrap_err().code(),
            Code::TooLarge
        );
    }
}
