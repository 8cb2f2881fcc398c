//! Checks whether the ports to listen on are free.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    time::Duration,
};

use remuda_config::Config;
use remuda_proto::v1::{GetServerInfoRequest, meta_service_client::MetaServiceClient};
use tonic::{Code, transport::Endpoint};

use super::{Check, Mode};

const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn ports(config: &Config, mode: Mode) -> Vec<Check> {
    let tls = config.tls.is_enabled();
    let server = port("API port", config.server.listen, "server.listen", tls);
    if mode == Mode::Embedded {
        return vec![server.await];
    }
    let (server, stream) =
        tokio::join!(server, port("stream port", config.stream.listen, "stream.listen", tls));
    vec![server, stream]
}

async fn port(name: &'static str, address: SocketAddr, key: &str, tls: bool) -> Check {
    let error = match TcpListener::bind(address) {
        Ok(_) if address.port() == 0 => return Check::ok(name, format!("{address}: any free port")),
        Ok(_) => return Check::ok(name, format!("{address} is free")),
        Err(error) => error,
    };
    match error.kind() {
        // Who answers cannot be asked without the name and the authority of its certificate.
        ErrorKind::AddrInUse if tls => {
            Check::ok(name, format!("{address} is in use, probably by remuda with TLS"))
        }
        ErrorKind::AddrInUse => match identify_listener(address).await {
            Listener::Remuda(version) => Check::ok(name, format!("{address} is in use by remuda {version}")),
            Listener::Grpc => {
                Check::ok(name, format!("{address} is in use by a gRPC server, probably remuda"))
            }
            Listener::Other => Check::problem(
                name,
                format!("{address} is in use by another program"),
                format!(
                    "stop it (`ss -ltnp 'sport = :{}'` shows it), or set {key} to another port",
                    address.port()
                ),
            ),
        },
        ErrorKind::PermissionDenied => Check::problem(
            name,
            format!("this user may not listen on {address}"),
            format!("set {key} to a port of at least 1024, or grant CAP_NET_BIND_SERVICE"),
        ),
        _ => Check::problem(
            name,
            format!("cannot listen on {address}: {error}"),
            format!("set {key} to an address of this machine, or to 0.0.0.0:{}", address.port()),
        ),
    }
}

enum Listener {
    Remuda(String),
    Grpc,
    Other,
}

async fn identify_listener(address: SocketAddr) -> Listener {
    let Ok(endpoint) = Endpoint::from_shared(format!("http://{}", reachable(address))) else {
        return Listener::Other;
    };
    let endpoint = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT);
    let request = async {
        let mut client = MetaServiceClient::new(endpoint.connect_lazy());
        client.get_server_info(GetServerInfoRequest {}).await
    };
    match tokio::time::timeout(TIMEOUT * 2, request).await {
        Ok(Ok(info)) => Listener::Remuda(info.into_inner().version),
        Ok(Err(status)) if status.code() == Code::Unimplemented => Listener::Grpc,
        _ => Listener::Other,
    }
}

/// The address to connect to: loopback for a listener on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[tokio::test]
    async fn free_taken_and_foreign_ports_are_distinguished() {
        let check = |address: SocketAddr| port("API port", address, "server.listen", false);
        assert_eq!(check("127.0.0.1:0".parse().unwrap()).await.level, Level::Ok);

        // A listener that accepts connections and never answers.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = check(other.local_addr().unwrap()).await;
        assert_eq!(taken.level, Level::Problem);
        assert!(taken.found.ends_with("in use by another program"), "{}", taken.found);
        assert!(taken.fix.unwrap().contains("server.listen"));

        // 192.0.2.0/24 is reserved for documentation.
        let foreign = check("192.0.2.1:7777".parse().unwrap()).await;
        assert_eq!(foreign.level, Level::Problem);
        assert!(foreign.fix.unwrap().contains("0.0.0.0:7777"));
    }

    #[test]
    fn listener_on_all_addresses_is_contacted_on_loopback() {
        for (listen, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(reachable(listen.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
