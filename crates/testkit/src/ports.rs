//! Free TCP ports of the loopback interface.

use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{Ipv4Addr, TcpListener},
};

/// The usual first ephemeral port.
const DEFAULT_FIRST_EPHEMERAL: u16 = 32_768;
const FIRST_STABLE: u16 = 10_000;

/// A TCP port that was free a moment ago. Prefer letting a server choose its own.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A free TCP port for a server that will be restarted on it. It is below the ephemeral ports: an outgoing connection could
/// otherwise take it while the server is down.
pub fn stable_port() -> io::Result<u16> {
    let end = first_ephemeral().max(FIRST_STABLE + 1);
    let span = u64::from(end - FIRST_STABLE);
    let start = RandomState::new().build_hasher().finish() % span;
    let candidates = (0..span).filter_map(|step| {
        let offset = u16::try_from((start + step) % span).ok()?;
        Some(FIRST_STABLE + offset)
    });
    for port in candidates {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    free_port()
}

fn first_ephemeral() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(DEFAULT_FIRST_EPHEMERAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_ports_are_free_and_below_the_ephemeral_range() {
        let port = stable_port().unwrap();
        assert!(port >= FIRST_STABLE && port < first_ephemeral(), "{port}");
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert_ne!(stable_port().unwrap(), port);
    }
}
