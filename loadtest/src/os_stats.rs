//! Memory and socket statistics of the servers, from `/proc`.

use std::{fs, net::SocketAddr};

use anyhow::Context as _;

/// Resident memory of a process, in KiB.
pub(crate) fn resident_kib(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    resident(&status).with_context(|| format!("no VmRSS in {path}"))
}

fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// The largest send queue of a connection of these servers, in bytes.
pub(crate) fn max_unsent_bytes(servers: &[SocketAddr]) -> anyhow::Result<u64> {
    let ports: Vec<u16> = servers.iter().map(SocketAddr::port).collect();
    let table = fs::read_to_string("/proc/net/tcp").context("cannot read /proc/net/tcp")?;
    Ok(table.lines().filter_map(|line| unsent(line, &ports)).max().unwrap_or_default())
}

/// The send queue of a connection of one of these ports.
fn unsent(line: &str, ports: &[u16]) -> Option<u64> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _remote, _state, queues) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let port = u16::from_str_radix(local.split_once(':')?.1, 16).ok()?;
    let (unsent, _unread) = queues.split_once(':')?;
    if ports.contains(&port) { u64::from_str_radix(unsent, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed_from_the_process_status() {
        assert_eq!(resident("Name:\tx\nVmPeak:\t  9 kB\nVmRSS:\t   1234 kB\n"), Some(1234.0));
        assert_eq!(resident("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn send_queue_is_parsed_for_the_given_ports() {
        let line =
            "  37: 0100007F:1E61 0100007F:C350 01 0000A1B2:00000003 01:00000014 00000000     0        0 9 1";
        assert_eq!(unsent(line, &[7777]), Some(0xa1b2));
        assert_eq!(unsent(line, &[7778]), None);
        assert_eq!(unsent("  sl  local_address rem_address   st tx_queue rx_queue tr", &[7777]), None);
    }
}
