//! The address of the client that sent a request, also behind proxies.

use std::net::IpAddr;

use tonic::codegen::http::{HeaderMap, HeaderName};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client of a request that came from `peer` through this number of trusted proxies.
///
/// Each proxy appends the address it got the request from. So only the last `proxies` entries are true; a client can write
/// whatever it likes before them.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: usize) -> IpAddr {
    let Some(skipped) = proxies.checked_sub(1) else { return peer };
    let values = headers.get_all(FORWARDED_FOR).iter().rev();
    let mut entries = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.rsplit(','));
    entries.nth(skipped).and_then(|entry| address(entry.trim())).unwrap_or(peer)
}

/// Some proxies append the port.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = entry.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().ok().or_else(|| Some(entry.parse::<std::net::SocketAddr>().ok()?.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_of_trusted_proxies_count() {
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        for (lines, proxies, expected) in [
            (&["6.6.6.6"][..], 0, "10.0.0.1"),
            (&["6.6.6.6, 192.0.2.1"], 1, "192.0.2.1"),
            (&["6.6.6.6, 192.0.2.1, 10.0.0.2"], 2, "192.0.2.1"),
            (&["6.6.6.6", "192.0.2.1", "10.0.0.2"], 2, "192.0.2.1"),
            (&["192.0.2.1:4000"], 1, "192.0.2.1"),
            (&["[2001:db8::1]:4000"], 1, "2001:db8::1"),
            (&["[2001:db8::1]"], 1, "2001:db8::1"),
            (&["::ffff:192.0.2.1"], 1, "192.0.2.1"),
            // Fewer proxies than configured, or nonsense: the peer itself.
            (&["192.0.2.1"], 2, "10.0.0.1"),
            (&["6.6.6.6, unknown"], 1, "10.0.0.1"),
            (&[], 1, "10.0.0.1"),
        ] {
            let header = |line: &&str| (FORWARDED_FOR, line.parse().unwrap());
            let headers: HeaderMap = lines.iter().map(header).collect::<Vec<_>>().into_iter().fold(
                HeaderMap::new(),
                |mut headers, (name, value)| {
                    headers.append(name, value);
                    headers
                },
            );
            let found = client_address(peer, &headers, proxies);
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{lines:?} {proxies}");
        }
    }
}
