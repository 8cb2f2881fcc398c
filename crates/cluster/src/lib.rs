//! A Remuda cluster of real processes on this machine, with faults to inject.
//!
//! [`Cluster::start`] starts its own PostgreSQL server and nats-server, and `remuda` processes: control planes, workers and
//! stream services. Each process reaches each server through its own TCP proxy, so every link can be cut, healed and slowed
//! separately. [`FaultKind::inject`] injects one fault and heals it within bounded time; a [`FaultSchedule`] is a reproducible
//! sequence of faults.
//!
//! Nothing is simulated, and nothing is left behind: when a cluster is dropped or this process dies in any way, its processes
//! are killed and its files removed. If something failed, the logs are kept and their directory is printed.
//!
//! This crate generates no load and checks no history: `loadtest chaos` does both.

mod admin;
mod binary;
mod clock;
mod cluster;
mod connections;
mod fault;
mod hostile;
mod member;
mod options;
mod schedule;
mod server;
mod wait;
mod work_directory;

pub use binary::find_or_build_remuda;
pub use cluster::{Cluster, Panic, UnexpectedDeath};
pub use fault::{FaultKind, FaultRecord};
pub use hostile::{HostileCounts, HostileMember};
pub use member::{Member, Role};
pub use options::ClusterOptions;
pub use remuda_testkit::{Link, Process, TcpProxy, processes_of, still_alive};
pub use schedule::{FaultSchedule, PlannedFault};
