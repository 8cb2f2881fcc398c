//! Which requests of web browsers are accepted.
//!
//! A web page can make the browser of a person who visits it send requests to servers that only this person reaches, such
//! as one on loopback.
//!
//! - A server without keys answers only under its own names. Otherwise a page could point its own name to the server's
//!   address (DNS rebinding), and then read and do everything.
//! - Changes are accepted only from the server's own pages and from the configured origins; without keys reads as well.
//!
//! Other programs send no `Origin`, so they are not affected by the second rule.

use std::net::IpAddr;

use remuda_domain::{Code, Error, error::Result};
use tonic::codegen::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{HOST, ORIGIN},
};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Paths that tell nothing but whether the server works. Load balancers ask for them under any name.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];
/// A value in an error message is cut to this length.
const MAX_SHOWN: usize = 100;

/// The rules of one server.
#[derive(Clone, Debug, Default)]
pub struct BrowserRules {
    /// `None`: any.
    hosts: Option<Hosts>,
    /// Origins of web pages that may call the API; `*` for all.
    origins: Vec<String>,
}

#[derive(Clone, Debug)]
struct Hosts {
    /// Names, each with a port if only this port is meant.
    names: Vec<String>,
    /// Accepts every address, not only those of the loopback interface. A rebound name is never an address.
    any_address: bool,
}

impl BrowserRules {
    /// `cors_origins` and `allowed_hosts` are the settings of the server. Without keys, or with allowed hosts, the host is
    /// checked.
    #[must_use]
    pub fn new(
        listen: IpAddr,
        keys_required: bool,
        allowed_hosts: Vec<String>,
        cors_origins: Vec<String>,
    ) -> Self {
        let checked =
            (!keys_required || !allowed_hosts.is_empty()) && !allowed_hosts.iter().any(|it| it == "*");
        let any_address = !listen.to_canonical().is_loopback();
        let hosts = checked.then_some(Hosts { names: allowed_hosts, any_address });
        Self { hosts, origins: cors_origins }
    }

    /// Fails if the request must not be handled.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let host = uri.authority().map(|authority| authority.as_str());
        let mut hosts = host.into_iter().chain(text_values(headers, HOST)).peekable();
        let host = hosts.peek().copied();
        if let Some(allowed) = &self.hosts
            && !HEALTH.contains(&uri.path())
        {
            let foreign = hosts.find(|host| !allowed.contains(host));
            if host.is_none() || foreign.is_some() {
                return Err(refused_host(foreign.unwrap_or_default()));
            }
        }
        self.check_origin(method, host.unwrap_or_default(), headers)
    }

    fn check_origin(&self, method: &Method, host: &str, headers: &HeaderMap) -> Result<()> {
        let reads = [Method::GET, Method::HEAD].contains(method);
        // The CORS layer answers preflights.
        if *method == Method::OPTIONS || (reads && self.hosts.is_none()) {
            return Ok(());
        }
        let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
        // Scripts cannot set this header. Behind a proxy that changes the host it is the only true one.
        let own_page = site == Some(b"same-origin") && self.hosts.is_none();
        let mut origins = text_values(headers, ORIGIN).peekable();
        if origins.peek().is_some() {
            let foreign =
                origins.find(|origin| !own_page && !is_same_origin(origin, host) && !self.lists(origin));
            return foreign.map_or(Ok(()), |origin| Err(refused_origin("origin", origin)));
        }
        match site {
            None | Some(b"same-origin" | b"none") => Ok(()),
            // A person follows a link. The page with the link learns nothing.
            Some(_) if reads && headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate") => Ok(()),
            Some(site) => Err(refused_origin("sec-fetch-site", &String::from_utf8_lossy(site))),
        }
    }

    fn lists(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(origin))
    }
}

impl Hosts {
    fn contains(&self, host: &str) -> bool {
        let name = without_port(host);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(address) = address
            && (self.any_address || address.to_canonical().is_loopback())
        {
            return true;
        }
        let matches =
            |listed: &String| listed.eq_ignore_ascii_case(name) || listed.eq_ignore_ascii_case(host);
        // Any port: the way to a server on loopback may be a tunnel from another port.
        name.eq_ignore_ascii_case("localhost") || self.names.iter().any(matches)
    }
}

/// All values of a header. One that is not text is no host and no origin.
fn text_values(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Compares without the scheme: a proxy may add TLS.
fn is_same_origin(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    !host.is_empty() && authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

fn shown(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_SHOWN)]
}

fn refused_host(host: &str) -> Error {
    let found = if host.is_empty() { "none".to_owned() } else { format!("{:?}", shown(host)) };
    let message = format!(
        "expected a Host header with localhost, this server's address, or a name in server.allowed_hosts, found {found}"
    );
    Error::new(Code::HostNotAllowed, message).at("host")
}

fn refused_origin(header: &str, value: &str) -> Error {
    let message = format!(
        "web pages of other sites may not call the API ({header}: {:?}); list their origins in server.cors_origins",
        shown(value)
    );
    Error::new(Code::OriginNotAllowed, message).at(header)
}

#[cfg(test)]
mod tests;
