//! Real servers for tests: PostgreSQL, nats-server and a Docker engine as child processes.
//!
//! Every server has its own free port of the loopback interface and its own directory. It is stopped when its handle is
//! dropped, and by the kernel when the test process dies in any other way, SIGKILL included. [`TcpProxy`] can cut the link
//! between a client and a server.
//!
//! The environment set by `cargo xtask test` selects the binaries; [`packages`] installs missing ones on request. This crate
//! does not implement the protocols of these servers: a test brings its own client.

mod busybox_image;
mod cargo;
mod child_process;
mod docker_engine;
mod faketime;
mod nats;
pub mod packages;
mod ports;
mod postgres;
mod processes;
mod proxy;
mod small_disk;
mod wait;

pub use busybox_image::BusyboxImage;
pub use cargo::cargo;
pub use child_process::{Child, find_program};
pub use docker_engine::DockerEngine;
pub use faketime::faketime_library;
pub use nats::{NatsServer, nats_binaries};
pub use ports::{free_port, stable_port};
pub use postgres::{PostgresServer, TestDatabase, postgres_program, preallocate_wal};
pub use processes::{Process, process, processes_of, still_alive};
pub use proxy::{Link, TcpProxy};
pub use small_disk::SmallDisk;
pub use wait::{Condition, wait_for, wait_until};
