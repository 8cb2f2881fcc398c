//! Real servers for tests: PostgreSQL, nats-server and a Docker engine as child processes.
//!
//! Every server has its own free port of the loopback interface and its own directory. It is ended when its
//! handle is dropped, and by the kernel when the test process dies in any other way, SIGKILL included. Nothing here
//! speaks the protocols of these servers: a test brings its own client. [`TcpProxy`] stands between the two and cuts them
//! off from each other.
//!
//! Which binaries are used comes from the environment that `cargo xtask test` sets; [`packages`] installs what is missing, for those who ask for it.

mod cargo;
mod child;
mod docker;
mod faketime;
mod image;
mod nats;
pub mod packages;
mod ports;
mod postgres;
mod processes;
mod proxy;
mod wait;

pub use cargo::cargo;
pub use child::{Child, find_program};
pub use docker::DockerEngine;
pub use faketime::faketime_library;
pub use image::BusyboxImage;
pub use nats::{NatsServer, nats_binaries};
pub use ports::{free_port, stable_port};
pub use postgres::{PostgresServer, TestDatabase, age_postgres};
pub use processes::{Process, process, processes_of, still_alive};
pub use proxy::{Link, TcpProxy};
pub use wait::{Condition, wait_for, wait_until};
