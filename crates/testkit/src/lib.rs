//! Real servers for tests: PostgreSQL and nats-server as child processes.
//!
//! Every server has its own free port of the loopback interface and its own temporary directory. It is ended when its
//! handle is dropped, and by the kernel when the test process dies in any other way, SIGKILL included. Nothing here
//! speaks the protocols of these servers: a test brings its own client.
//!
//! Which binaries are used comes from the environment that `cargo xtask test` sets.

mod child;
mod nats;
mod postgres;
mod wait;

pub use child::{Child, find_program};
pub use nats::{NatsServer, nats_binaries};
pub use postgres::{PostgresServer, TestDatabase};
pub use wait::{Condition, wait_for, wait_until};

use std::net::{Ipv4Addr, TcpListener};

/// A TCP port of the loopback interface that was free a moment ago. Prefer letting a server choose its own.
pub fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
