//! Puts the services together: one process, any set of roles, embedded or split.
//!
//! Everything that differs between the modes is here: which store, which transport, which ports. The services
//! themselves do not know.

mod agents;
mod book;
mod execution;
mod node;
mod open;

pub use agents::{context, loader, models, templates};
pub use execution::{backends, docker_host, hardening, policies, tools};
pub use node::{Node, Options, Roles};
pub use open::{DEFAULT_TENANT, Mode, Parts, nats_options, store_options, workspace_root};
