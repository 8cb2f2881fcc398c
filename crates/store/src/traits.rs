//! The traits that make up [`Store`], one per group of calls.

mod approvals;
mod budgets;
mod bus_keys;
mod events;
mod fleet;
mod identity;
mod overview;
mod ownership;
mod retention;
mod runs;
mod sandboxes;
mod sessions;
mod slots;
mod trees;
mod webhooks;

pub use self::{
    approvals::*, budgets::*, bus_keys::*, events::*, fleet::*, identity::*, overview::*, ownership::*,
    retention::*, runs::*, sandboxes::*, sessions::*, slots::*, trees::*, webhooks::*,
};

/// Everything a process needs from the store. Implemented for every type that implements all parts.
pub trait Store:
    Identity
    + Sessions
    + Runs
    + Trees
    + Approvals
    + Budgets
    + BusKeys
    + Ownership
    + Events
    + Fleet
    + Overview
    + Retention
    + Sandboxes
    + Webhooks
    + Deliveries
    + Send
    + Sync
    + 'static
{
}

impl<T> Store for T where
    T: Identity
        + Sessions
        + Runs
        + Trees
        + Approvals
        + Budgets
        + BusKeys
        + Ownership
        + Events
        + Fleet
        + Overview
        + Retention
        + Sandboxes
        + Webhooks
        + Deliveries
        + Send
        + Sync
        + 'static
{
}
