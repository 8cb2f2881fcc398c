//! Composes the services into one process: any set of roles, embedded or split.
//!
//! Everything that differs between the modes is here: store, transport and ports. The services do not depend on the mode.

mod agents;
mod bus_signing;
mod connections;
mod execution;
mod node;
mod sandbox_registry;

pub use agents::{context, loader, models, templates};
pub use connections::{
    Connections, DEFAULT_TENANT, Mode, nats_options, store_options, tenant_administrators, workspace_root,
    workspace_roots,
};
pub use execution::{backends, docker_host, hardening, policies, tool_catalog, tools};
pub use node::{Node, Options, Roles};
