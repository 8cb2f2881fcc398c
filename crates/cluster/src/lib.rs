//! A Remuda cluster of real processes on this machine, with faults to inject.
//!
//! [`Cluster::start`] brings up a PostgreSQL server and a nats-server of its own, and `remuda` processes: control planes,
//! workers and stream services. Each process reaches each of the two servers through a TCP proxy of its own, so every link
//! can be cut, healed and slowed by itself. [`FaultKind::inject`] does one bad thing and undoes it again, within bounded
//! time; a [`FaultSchedule`] is a reproducible sequence of such things.
//!
//! Nothing is simulated, and nothing is left: when a cluster is dropped, or this process dies in whatever way, its processes
//! are killed and its files removed. Logs are kept, and their place named, when something failed.
//!
//! This crate drives no load and judges no history: `loadtest chaos` does both.

mod admin;
mod binary;
mod clock;
mod cluster;
mod connections;
mod fault;
mod home;
mod member;
mod options;
mod schedule;
mod server;
mod wait;

pub use binary::find_or_build_remuda;
pub use cluster::{Cluster, Panic, UnexpectedDeath};
pub use fault::{FaultKind, FaultRecord};
pub use member::{Member, Role};
pub use options::ClusterOptions;
pub use remuda_testkit::{Link, Process, TcpProxy, processes_of, still_alive};
pub use schedule::{FaultSchedule, PlannedFault};
