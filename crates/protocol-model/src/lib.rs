#![doc = include_str!("../README.md")]

pub mod action;
mod broker;
mod fault;
mod in_flight_grant;
pub mod property;
mod protocol;
mod reconciler;
mod recovery;
mod row;
pub mod scope;
pub mod state;
mod store;
mod symmetry;
pub mod task;
mod worker;

pub use action::Action;
pub use protocol::Protocol;
pub use row::Row;
pub use scope::{Call, DirectGrants, Faults, Mutation, Scope};
pub use state::State;
