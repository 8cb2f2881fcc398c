//! Counts the clients of a port of this machine.

use std::fs;

const ESTABLISHED: &str = "01";

/// The number of clients connected to a port of the loopback interface.
pub(crate) fn clients_of(port: u16) -> usize {
    count(&fs::read_to_string("/proc/net/tcp").unwrap_or_default(), port)
}

/// Lines are `sl local_address rem_address st …`, with addresses such as `0100007F:1F90`.
fn count(table: &str, port: u16) -> usize {
    let local = format!(":{port:04X}");
    let is_client = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|address| address.ends_with(&local)) && fields.nth(1) == Some(ESTABLISHED)
    };
    table.lines().filter(is_client).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_established_connections_to_the_port_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000
   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000
   3: 0100007F:1F90 0100007F:9C41 06 00000000:00000000";
        assert_eq!(count(table, 8080), 1);
        assert_eq!(count(table, 8081), 0);
    }

    #[test]
    fn real_clients_are_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(clients_of(address.port()), 0);
        let _client = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(clients_of(address.port()), 1);
    }
}
